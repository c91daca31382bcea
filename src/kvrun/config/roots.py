"""What ``keys.root`` may say, as data: where the root of the key hierarchy is."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from kvrun.config.values import is_loopback


@dataclass(frozen=True, slots=True)
class MemoryAddress:
    """Keys in this process's memory only."""

    kind = "memory"


@dataclass(frozen=True, slots=True)
class FileAddress:
    """A folder; a relative one is below ``instance.data_dir``, None the usual one beside that."""

    folder: Path | None
    kind = "file"


@dataclass(frozen=True, slots=True)
class OpenBaoAddress:
    """A transit key: ``url`` is scheme, host and port; ``mount`` the path of the engine."""

    url: str
    mount: str
    key: str
    kind = "openbao"


@dataclass(frozen=True, slots=True)
class Pkcs11Address:
    """A token by its label, behind a PKCS#11 library; ``key`` labels the objects."""

    module: Path
    token: str
    key: str
    kind = "pkcs11"


@dataclass(frozen=True, slots=True)
class AwsKmsAddress:
    """A KMS key by its ARN."""

    arn: str
    region: str
    kind = "aws-kms"


RootAddress = MemoryAddress | FileAddress | OpenBaoAddress | Pkcs11Address | AwsKmsAddress

FORMS = (
    '"file", "file:PATH", "memory", "openbao:URL/MOUNT/KEY", '
    '"pkcs11:MODULE?token=LABEL&key=NAME" or "aws-kms:KEY_ARN"'
)


def parse_root(text: str) -> RootAddress:
    """The address in ``text``. Raises ValueError, which says what is allowed."""
    kind, colon, rest = text.partition(":")
    if kind == "memory" and not colon:
        return MemoryAddress()
    if kind == "file" and not colon:
        return FileAddress(None)
    parse = _PARSERS.get(kind)
    if parse is None or not rest:
        raise ValueError(FORMS)
    return parse(rest)


def _file(rest: str) -> FileAddress:
    return FileAddress(Path(rest).expanduser())


def _openbao(rest: str) -> OpenBaoAddress:
    example = '"openbao:https://bao.example.com:8200/transit/kvrun-chat"'
    parts = urlsplit(rest)
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"an OpenBao root is written as {example}; its port is no port") from None
    mount, _, key = unquote(parts.path).strip("/").rpartition("/")
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.username is not None
        or parts.query
        or parts.fragment
        or not _MOUNT.fullmatch(mount)
        or not _NAME.fullmatch(key)
    ):
        raise ValueError(
            f"an OpenBao root is written as {example}: address, path of the transit engine, name "
            "of the key, and no user, token or query"
        )
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ValueError("an OpenBao root on another machine needs https://: keys travel to it")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return OpenBaoAddress(f"{parts.scheme}://{host}" + (f":{port}" if port else ""), mount, key)


def _pkcs11(rest: str) -> Pkcs11Address:
    module, _, query = rest.partition("?")
    fields = parse_qsl(query, keep_blank_values=True)
    values = dict(fields)
    if (
        not module.startswith("/")
        or len(fields) != 2
        or values.keys() != {"token", "key"}
        or not 1 <= len(values["token"].encode()) <= 32
        or not _NAME.fullmatch(values["key"])
    ):
        raise ValueError(
            "a PKCS#11 root is written as "
            '"pkcs11:/usr/lib/softhsm/libsofthsm2.so?token=kvrun&key=chat": absolute path of the '
            "library, label of the token (at most 32 bytes), name of the key, and no PIN"
        )
    return Pkcs11Address(Path(module), values["token"], values["key"])


def _aws_kms(rest: str) -> AwsKmsAddress:
    found = _ARN.fullmatch(rest)
    if found is None:
        raise ValueError(
            "an AWS root is written as "
            '"aws-kms:arn:aws:kms:eu-central-1:111122223333:key/KEY_ID"; aliases are refused, '
            "since they can be pointed elsewhere"
        )
    return AwsKmsAddress(rest, found[1])


_PARSERS: dict[str, Callable[[str], RootAddress]] = {
    "file": _file,
    "openbao": _openbao,
    "pkcs11": _pkcs11,
    "aws-kms": _aws_kms,
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MOUNT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")
_ARN = re.compile(r"arn:aws[a-z-]*:kms:([a-z0-9-]+):[0-9]{12}:key/[A-Za-z0-9-]+")
