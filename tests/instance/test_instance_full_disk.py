"""A daemon whose log lies on a disk that is really full: a tmpfs of a few pages."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_instance_requests import admit, blocks, hashes, stored

from kvrun.audit.files import read_keys, verify_files
from kvrun.audit.verdict import Aspect, Verdict
from kvrun.audit.verify import Trust
from kvrun.instance import protocol
from support.byhand import HandEngine
from support.client import eventually, grant
from support.daemon import Daemon

pytestmark = pytest.mark.root


@pytest.fixture
def cramped() -> Iterator[Daemon]:
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    daemon = Daemon(folder, settings='[audit]\nmode = "require"\n')
    audit = daemon.data / "audit"
    audit.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(audit)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow mounting a tmpfs")
    try:
        (audit / "ballast").write_bytes(bytes(128 * 1024))
        daemon.start()
        yield daemon
        daemon.stop()
    finally:
        subprocess.run(["umount", str(audit)], check=True)
        shutil.rmtree(folder, ignore_errors=True)


def test_a_full_disk_ends_all_reuse_and_a_freed_one_brings_it_back(cramped: Daemon) -> None:
    audit = cramped.data / "audit"
    with HandEngine(cramped.socket, cramped.engine_token) as engine:
        made, fresh = stored(cramped, engine, "alice"), blocks()
        live = admit(cramped, engine, "alice", hashes(made))
        granted = grant(cramped, "alice")

        def ask() -> protocol.Matched:
            claim = cramped.claim("alice", granted.salt, granted.generation)
            return engine.match(claim, granted.salt, hashes(made))

        while (answer := ask()).verdict is protocol.Verdict.ADMITTED:
            pass
        assert "No space left on device" in answer.reason
        # Neither opened nor sealed, nor the engine's own pages for a request that asks again.
        assert engine.load(live.handle, hashes(made)).plain == {}
        engine.store(live.handle, fresh)
        again = engine.match("", "", hashes(made), handle=live.handle)
        assert again.verdict is protocol.Verdict.DENIED
        (audit / "ballast").unlink()
        eventually(lambda: ask().verdict is protocol.Verdict.ADMITTED, "requests are admitted")
        back = admit(cramped, engine, "alice", hashes(made))
        assert engine.load(back.handle, hashes(made)).plain == dict(made)
        assert admit(cramped, engine, "alice", hashes(fresh)).tiers == (bytes(4),)
        assert cramped.count("gap") >= 1
    cramped.stop()
    report = verify_files([audit], Trust(keys=read_keys(audit / "signer.vkey")))
    assert report.exit_code == 0
    assert report.verdict(Aspect.INTEGRITY) is Verdict.PASS
