"""An AWS KMS root against moto: the shape of the API, and nothing of what KMS promises.

moto decrypts with disabled keys and with keys that are about to be deleted. So what KMS refuses is
played in the words of its documentation, and no claim about erasure rests on these tests.
"""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest
from root_rigs import AwsKmsRig

from kvrun.config import parse_config
from kvrun.keys import (
    ClaimClass,
    RootError,
    RootRevokedError,
    RootUnavailableError,
    WrapError,
    filesystem_facts,
)
from kvrun.keys.open_root import open_root, probe_root


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("DisabledException", RootRevokedError),
        ("KMSInvalidStateException", RootRevokedError),
        ("AccessDeniedException", RootRevokedError),
        ("NotFoundException", RootRevokedError),
        ("ExpiredTokenException", RootRevokedError),
        ("UnrecognizedClientException", RootRevokedError),
        ("ThrottlingException", RootUnavailableError),
        ("KMSInternalException", RootUnavailableError),
        ("DependencyTimeoutException", RootUnavailableError),
        ("SomethingNewException", RootUnavailableError),
    ],
)
def test_what_kms_says_is_a_refusal_or_an_outage(
    aws_kms_rig: AwsKmsRig, code: str, kind: type[RootError]
) -> None:
    root = aws_kms_rig.open()
    root.create_epoch(1)
    root.check()
    aws_kms_rig.refusal = code
    with pytest.raises(kind) as caught:
        root.check()
    assert type(caught.value) is kind
    assert code in caught.value.message
    root.close()


def test_the_context_of_a_wrap_is_asked_for_again(aws_kms_rig: AwsKmsRig) -> None:
    keeper = aws_kms_rig.keeper()
    secret, out = memoryview(bytearray(range(32))), memoryview(bytearray(32))
    wrapped = keeper.encrypt(1, b"one", secret)
    keeper.decrypt_into(1, b"one", wrapped, out)
    assert out == secret
    for ref, context in ((1, b"two"), (2, b"one")):
        with pytest.raises(WrapError):
            keeper.decrypt_into(ref, context, wrapped, out)
    keeper.close()


def test_a_key_that_cannot_wrap_is_refused(aws_kms_rig: AwsKmsRig) -> None:
    client = boto3.client("kms", region_name="eu-central-1")
    made = client.create_key(KeySpec="RSA_2048", KeyUsage="SIGN_VERIFY")
    aws_kms_rig.arn = made["KeyMetadata"]["Arn"]
    with pytest.raises(RootError, match="RSA_2048 key for SIGN_VERIFY"):
        aws_kms_rig.open()


def test_a_key_on_its_way_out_is_refused_at_the_start(aws_kms_rig: AwsKmsRig) -> None:
    client = boto3.client("kms", region_name="eu-central-1")
    key_id = aws_kms_rig.arn.rpartition("/")[2]
    client.schedule_key_deletion(KeyId=key_id, PendingWindowInDays=7)
    with pytest.raises(RootRevokedError, match="PendingDeletion"):
        aws_kms_rig.open()


def test_the_claim_is_that_of_the_folder_and_the_folder_says_so(aws_kms_rig: AwsKmsRig) -> None:
    root = aws_kms_rig.open()
    root.create_epoch(1)
    root.create_epoch(2)
    evidence = root.destroy_epoch(1)
    disk = filesystem_facts(aws_kms_rig.folder)
    assert evidence.claim is root.facts.claim is disk.claim is not ClaimClass.CRYPTOGRAPHIC
    assert disk.reason in root.facts.reason
    assert "lives on" in evidence.method
    assert "Do not back it up" in (aws_kms_rig.folder / "DO-NOT-BACK-UP.txt").read_text()
    root.close()


def test_the_configured_root_opens(aws_kms_rig: AwsKmsRig, tmp_path: Path) -> None:
    config = parse_config(
        f'[keys]\nroot = "aws-kms:{aws_kms_rig.arn}"', {}, source=tmp_path / "kvrun.toml"
    )
    data = config.layout.data_dir
    _, reason = probe_root(config.keys, data, snapshot_days=None)
    assert "7 days" in reason
    assert not data.exists()
    root = open_root(config.keys, data, strict=False, snapshot_days=None)
    root.create_epoch(1)
    root.check()
    assert (data / "root-aws-kms" / "kept.slots").exists()
    root.close()


def test_missing_credentials_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aws_kms_rig: AwsKmsRig
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(RootError, match="credentials") as caught:
        aws_kms_rig.open()
    assert "AWS_PROFILE" in (caught.value.hint or "")
