"""Roots for the key tests: a real OpenBao server, a SoftHSM token, moto's KMS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from bao_server import BaoServer, dev_bao
from root_rigs import (
    SOFTHSM,
    AwsKmsRig,
    FileRig,
    KeptRig,
    MemoryRig,
    OpenBaoRig,
    Pkcs11Rig,
    RootRig,
    make_token,
)


@pytest.fixture(scope="session")
def bao(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BaoServer]:
    with dev_bao(tmp_path_factory.mktemp("bao")) as server:
        yield server


@pytest.fixture(scope="session")
def softhsm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The label of a token. The module reads its configuration once, so it is one for all."""
    assert SOFTHSM.exists(), "install softhsm2; scripts/test.sh leaves pkcs11 tests out without it"
    folder = tmp_path_factory.mktemp("softhsm")
    tokens = folder / "tokens"
    tokens.mkdir()
    settings = folder / "softhsm2.conf"
    settings.write_text(f"directories.tokendir = {tokens}\nlog.level = ERROR\n")
    os.environ["SOFTHSM2_CONF"] = str(settings)
    os.environ["KVRUN_TEST_TOKENS"] = str(tokens)
    make_token("kvrun")
    return "kvrun"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from moto import mock_aws

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield


@pytest.fixture
def openbao_rig(bao: BaoServer, tmp_path: Path) -> OpenBaoRig:
    return OpenBaoRig(tmp_path, bao)


@pytest.fixture
def pkcs11_rig(softhsm: str, tmp_path: Path) -> Pkcs11Rig:
    return Pkcs11Rig(tmp_path, softhsm)


@pytest.fixture
def aws_kms_rig(aws: None, tmp_path: Path) -> AwsKmsRig:
    return AwsKmsRig(tmp_path)


@pytest.fixture(params=["openbao", "pkcs11", "aws_kms"])
def kept(request: pytest.FixtureRequest) -> KeptRig:
    """Every root whose keys another system keeps."""
    rig: KeptRig = request.getfixturevalue(f"{request.param}_rig")
    return rig


@pytest.fixture(params=["memory", "file", "openbao", "pkcs11", "aws_kms"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> RootRig:
    """Every root."""
    if request.param == "memory":
        return MemoryRig()
    if request.param == "file":
        return FileRig(tmp_path)
    found: RootRig = request.getfixturevalue(f"{request.param}_rig")
    return found


@pytest.fixture(params=["file", "openbao", "pkcs11", "aws_kms"])
def lasting(request: pytest.FixtureRequest, tmp_path: Path) -> FileRig | KeptRig:
    """Every root that outlives its process, in a folder."""
    if request.param == "file":
        return FileRig(tmp_path)
    found: KeptRig = request.getfixturevalue(f"{request.param}_rig")
    return found
