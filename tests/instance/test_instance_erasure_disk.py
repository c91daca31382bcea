"""A disk that takes no file keeps no key alive, and the certificate follows when it does again."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kvrun.config import KvrunConfig, parse_config
from kvrun.erasure.archive import CertificateArchive
from kvrun.erasure.certificate import RequestKind
from kvrun.erasure.errors import ErasureError
from kvrun.erasure.job import JobFileError, JobStore
from kvrun.erasure.plan import ErasureScope
from kvrun.erasure.targets import NoEngines
from kvrun.instance.erasures import ErasureRequest
from kvrun.instance.parts import certificates_folder, open_erasures, open_parts

SCOPE = ErasureScope(RequestKind.SESSION, "alice", "default")


@pytest.fixture
def config(tmp_path: Path) -> KvrunConfig:
    text = '[instance]\ndata_dir = "d"\nmemory_bytes = "64MiB"\n'
    (tmp_path / "d").mkdir(mode=0o700)
    return parse_config(text, {}, source=tmp_path / "kvrun.toml")


@pytest.mark.parametrize(
    ("kind", "method", "error"),
    [
        (JobStore, "save", JobFileError("no space left")),
        (CertificateArchive, "put", ErasureError("no space left")),
    ],
)
def test_the_key_goes_at_once_and_the_certificate_when_it_can(
    config: KvrunConfig,
    monkeypatch: pytest.MonkeyPatch,
    kind: type,
    method: str,
    error: Exception,
) -> None:
    def full(*_: object) -> None:
        raise error

    with open_parts(config) as parts, open_erasures(config, parts, None, NoEngines()) as erasures:
        before = parts.instance.open_session("alice", "default")
        with monkeypatch.context() as patch:
            patch.setattr(kind, method, full)
            with pytest.raises(type(error)):
                erasures.erase(ErasureRequest(SCOPE, "tests", reference="full"))
            assert parts.instance.open_session("alice", "default").salt != before.salt
            assert erasures.retry() == 1
        assert not list(certificates_folder(config).glob("*.json"))
        assert erasures.retry() == 0
    (statement,) = CertificateArchive(certificates_folder(config)).statements()
    assert statement.request.reference == "full"
    assert [key.generation for key in statement.keys] == [before.generation]


def test_a_ledger_that_cannot_be_written_keeps_no_key_alive(
    config: KvrunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvrun.audit.errors import AuditUnavailableError
    from kvrun.erasure.ledger import ErasureLedger

    def full(*_: object) -> None:
        raise AuditUnavailableError(f"no space left ({errno.ENOSPC})")

    with open_parts(config) as parts, open_erasures(config, parts, None, NoEngines()) as erasures:
        before = parts.instance.open_session("alice", "default")
        with monkeypatch.context() as patch:
            patch.setattr(ErasureLedger, "enter", full)
            with pytest.raises(AuditUnavailableError):
                erasures.erase(ErasureRequest(SCOPE, "tests"))
            assert parts.instance.open_session("alice", "default").salt != before.salt
        assert erasures.retry() == 0
    with open_parts(config) as parts, open_erasures(config, parts, None, NoEngines()):
        assert parts.instance.open_session("alice", "default").salt != before.salt
