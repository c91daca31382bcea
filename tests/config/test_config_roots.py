"""``keys.root`` names a root in one of five forms, and no secret."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvrun.config import ConfigError, parse_config
from kvrun.config.roots import (
    AwsKmsAddress,
    FileAddress,
    MemoryAddress,
    OpenBaoAddress,
    Pkcs11Address,
    parse_root,
)

ARN = "arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("memory", MemoryAddress()),
        ("file", FileAddress(None)),
        ("file:root", FileAddress(Path("root"))),
        ("file:/srv/root", FileAddress(Path("/srv/root"))),
        (
            "openbao:https://bao.example.com:8200/transit/chat",
            OpenBaoAddress("https://bao.example.com:8200", "transit", "chat"),
        ),
        (
            "openbao:https://bao.example.com/team/a/transit/chat-1",
            OpenBaoAddress("https://bao.example.com", "team/a/transit", "chat-1"),
        ),
        (
            "openbao:http://127.0.0.1:8200/transit/chat",
            OpenBaoAddress("http://127.0.0.1:8200", "transit", "chat"),
        ),
        (
            "openbao:http://[::1]:8200/transit/chat",
            OpenBaoAddress("http://[::1]:8200", "transit", "chat"),
        ),
        (
            "pkcs11:/usr/lib/softhsm/libsofthsm2.so?token=My%20token&key=chat",
            Pkcs11Address(Path("/usr/lib/softhsm/libsofthsm2.so"), "My token", "chat"),
        ),
        (f"aws-kms:{ARN}", AwsKmsAddress(ARN, "eu-central-1")),
    ],
)
def test_each_form_of_a_root_is_understood(text: str, expected: object) -> None:
    assert parse_root(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "openbao:URL/MOUNT/KEY"),
        ("memory:", "file:PATH"),
        ("file:", "file:PATH"),
        ("vault:https://v/transit/k", "openbao:URL/MOUNT/KEY"),
        ("openbao:bao.example.com/transit/chat", "openbao:https://bao.example.com:8200/transit"),
        ("openbao:https://bao.example.com/chat", "path of the transit engine"),
        ("openbao:https://u:hvs.x@bao.example.com/transit/chat", "no user, token"),
        ("openbao:https://bao.example.com/transit/chat?token=x", "no user, token"),
        ("openbao:https://bao.example.com/../transit/chat", "path of the transit engine"),
        ("openbao:https://bao.example.com:99999/transit/chat", "no port"),
        ("openbao:http://bao.example.com/transit/chat", "https://"),
        ("openbao:http://127.0.0.1.evil.example/transit/chat", "https://"),
        ("pkcs11:libsofthsm2.so?token=a&key=b", "absolute path"),
        ("pkcs11:/lib/p.so?token=a", "name of the key"),
        ("pkcs11:/lib/p.so?token=a&key=b&pin=1", "no PIN"),
        ("pkcs11:/lib/p.so?token=a&token=b&key=c", "no PIN"),
        ("aws-kms:alias/chat", "aliases are refused"),
        ("aws-kms:arn:aws:kms:eu-central-1:111122223333:alias/chat", "aliases are refused"),
        ("aws-kms:arn:aws:s3:eu-central-1:111122223333:key/chat", "KEY_ID"),
    ],
)
def test_what_is_no_root_is_refused_with_what_is_allowed(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        parse_root(text)


BAO = 'root = "openbao:https://bao.example.com/transit/chat"'
HSM = 'root = "pkcs11:/lib/p.so?token=a&key=b"'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BAO, 'keys.root_secret must say where the token is: "file:PATH" or "fd:N" or "env:NAME"'),
        (HSM, 'keys.root_secret must say where the PIN is: "file:PATH" or "fd:N"'),
        (f'{HSM}\nroot_secret = "env:PIN"', 'must be "file:PATH" or "fd:N"'),
        (f'{BAO}\nroot_secret = "fd:three"', 'must be "file:PATH" or "fd:N"'),
        ('root_secret = "file:x"', "means nothing for the file root"),
        ('root = "memory"\nroot_namespace = "a"', "root_namespace means nothing for the memory"),
        (f'root = "aws-kms:{ARN}"\nroot_ca_file = "a"', "root_ca_file means nothing"),
    ],
)
def test_what_does_not_fit_the_root_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(f"[keys]\n{text}", {})
    assert says in f"{caught.value.message}\n{caught.value.hint}"


def test_a_secret_in_the_configuration_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(f'[keys]\n{BAO}\nroot_secret = "hvs.CAESIJtoken"', {})
    shown = f"{caught.value.message}\n{caught.value.hint}"
    assert "never stands in the configuration" in shown
    assert "CAESIJ" not in shown


def test_relative_paths_of_a_root_are_taken_from_the_files_folder() -> None:
    text = f'[keys]\n{BAO}\nroot_secret = "file:token"\nroot_ca_file = "ca.pem"'
    keys = parse_config(text, {}, source=Path("/srv/kv/kvrun.toml")).keys
    assert keys.root_secret == "file:/srv/kv/token"
    assert keys.root_ca_file == Path("/srv/kv/ca.pem")
