"""As root: a destroyed epoch key is in no memory of the process that fetched it from elsewhere."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest
from root_rigs import KeptRig, OpenBaoRig, Pkcs11Rig
from test_keys_memory import Child, unmask

CHILD = """
import gc, json, sys
from pathlib import Path
import kvrun.keys.locked as locked
from kvrun.config import parse_config
from kvrun.keys.open_root import open_root
locked._map_secret = lambda size: None
base = Path(sys.argv[1])
config = parse_config(sys.argv[2], {}, source=base / "kvrun.toml")
root = open_root(config.keys, base, strict=False, snapshot_days=0)
key = locked.LockedBuffer(32)
def say(**fields):
    print(json.dumps(fields), flush=True)
    sys.stdin.readline()
root.create_epoch(1)
root.load_epoch(1, key.view)
say(epoch=[byte ^ 0xA5 for byte in key.view])
root.create_epoch(2)
key.wipe()
root.load_epoch(2, key.view)
root.destroy_epoch(1)
root.check()
gc.collect()
say()
"""


def settings_of(rig: KeptRig) -> str:
    if isinstance(rig, OpenBaoRig):
        return (
            f'root = "openbao:{rig.server.url}/transit/{rig.key}"\n'
            f'root_secret = "file:{rig.token_file}"\nroot_ca_file = "{rig.server.ca_file}"'
        )
    assert isinstance(rig, Pkcs11Rig)
    module = "/usr/lib/softhsm/libsofthsm2.so"
    root = f"pkcs11:{module}?token={rig.token}&key=chat"
    return f'root = "{root}"\nroot_secret = "file:{rig.pin_file}"'


@pytest.mark.root
@pytest.mark.parametrize("name", ["openbao", "pkcs11"])
def test_a_destroyed_epoch_key_is_in_no_memory(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    rig: KeptRig = request.getfixturevalue(f"{name}_rig")
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path), f"[keys]\n{settings_of(rig)}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        child = Child(process)
        epoch = unmask(child.step()["epoch"])
        assert child.copies(epoch) >= 1  # the search can succeed: it is in use
        child.go_on()
        child.step()
        forms = (epoch, base64.b64encode(epoch), json.dumps(list(epoch)).encode())
        assert [child.copies(form) for form in forms] == [0, 0, 0]
    finally:
        process.kill()
        process.wait()
