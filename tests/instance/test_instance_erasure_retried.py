"""An erasure that failed and is tried again states only what it did in the end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from test_instance_requests import admit, hashes, stored

from kvrun.config import parse_config
from kvrun.erasure.archive import CertificateArchive
from kvrun.erasure.certificate import RequestKind
from kvrun.erasure.errors import ErasureError
from kvrun.erasure.job import JobStore
from kvrun.erasure.plan import ErasureScope
from kvrun.erasure.targets import NoEngines, ScrubOutcome
from kvrun.errors import KvrunError
from kvrun.instance.connection import Connection
from kvrun.instance.erasing import scrub_call
from kvrun.instance.erasures import ErasureRequest
from kvrun.instance.parts import open_erasures, open_parts
from kvrun.instance.protocol import Load, Loaded, Role, SessionInvalidated
from support.byhand import BLOCK_BYTES, BlockAt, HandEngine, hello, wait_for
from support.client import eventually
from support.daemon import Daemon

# Keys cannot be destroyed, and nothing is tried again, while a file exists.
FAILS = """
import kvrun.instance.daemon
from kvrun.errors import KvrunError
from kvrun.instance.erasures import Erasures
from kvrun.keys.selection import KeySelection
kvrun.instance.daemon._EXPIRY_EVERY_S = 0.2
fails = Path(sys.argv[1]).with_name("fails")
destroy, retry = KeySelection.destroy, Erasures.retry
def failing(self, ids, **wish):
    if fails.exists():
        raise KvrunError("the root is away")
    return destroy(self, ids, **wish)
KeySelection.destroy = failing
Erasures.retry = lambda self: 0 if fails.exists() else retry(self)
"""


def test_plaintext_that_was_opened_between_two_tries_is_gone_when_it_is_certified() -> None:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    daemon = Daemon(folder, prelude=FAILS)
    daemon.start()
    try:
        with HandEngine(daemon.socket, daemon.engine_token) as engine:
            made = stored(daemon, engine, "alice", count=1)
            fails = folder / "fails"
            fails.touch()
            with pytest.raises(KvrunError):
                daemon.admin("erase", kind="session", tenant="alice", session="default")
            # The session was let in again; a silent worker keeps what is opened for it now.
            handle = admit(daemon, engine, "alice", hashes(made)).handle
            taken = engine.slots.take()
            assert taken is not None
            assert engine.worker.send(Load(1, handle, (BlockAt(made[0][0], 0, 0, *taken),)))
            assert wait_for(engine.worker, Loaded) is not None
            assert bytes(engine.region.slot(taken[0], BLOCK_BYTES)) == made[0][1]
            gateway = Connection.connect(
                daemon.socket, hello(Role.GATEWAY, daemon.gateway_token), timeout_s=5
            )
            fails.unlink()
            told = wait_for(gateway, SessionInvalidated)
            assert told == SessionInvalidated("alice", "default", erasing=True)
            eventually(
                lambda: list((daemon.data / "storage").rglob("certificates/*.json")),
                "the second try is certified",
            )
            assert not any(engine.region.slot(taken[0], BLOCK_BYTES))
            gateway.close()
    finally:
        daemon.stop()
        shutil.rmtree(folder, ignore_errors=True)


class Silent(NoEngines):
    """One engine, which has not confirmed within the deadline."""

    def scrub(
        self, call: int, owners: Sequence[bytes], *, everything: bool, engines: Sequence[int]
    ) -> ScrubOutcome:
        return ScrubOutcome(unacknowledged=("engine process 1: not confirmed",))


def test_what_an_engine_confirmed_before_a_retry_is_in_an_addendum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise ErasureError("no space left")

    text = '[instance]\ndata_dir = "d"\nmemory_bytes = "64MiB"\n'
    (tmp_path / "d").mkdir(mode=0o700)
    config = parse_config(text, {}, source=tmp_path / "kvrun.toml")
    scope = ErasureScope(RequestKind.SESSION, "alice", "default")
    jobs = JobStore(config.layout.erasure / "jobs")
    with open_parts(config) as parts, open_erasures(config, parts, None, Silent()) as erasures:
        parts.instance.open_session("alice", "default")
        with monkeypatch.context() as patch:
            patch.setattr(CertificateArchive, "put", full)
            with pytest.raises(ErasureError):
                erasures.erase(ErasureRequest(scope, "tests"))
        (job,) = jobs.jobs()
        erasures.acknowledged(scrub_call(job), ScrubOutcome(4, 4, 0))
        assert erasures.retry() == 0
        (job,) = jobs.jobs()
        assert (job.addenda, job.unacknowledged, job.gpu.scrubbed) == (1, [], 4)
