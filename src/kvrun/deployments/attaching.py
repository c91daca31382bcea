"""Registering an engine that somebody else runs: one-time tokens, and what its file says."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from kvrun.claims.claim import encode_base64url
from kvrun.config import ConfigError, KvrunConfig, load_config
from kvrun.config.roots import FileAddress, MemoryAddress
from kvrun.deployments.errors import AttachRefusedError
from kvrun.deployments.model import Deployment, DeploymentSpec
from kvrun.keys.errors import RootError
from kvrun.keys.root_place import usual_places

TOKEN_LIFETIME_S = 3600.0
TOKEN_PREFIX = "kva_"  # noqa: S105 - how tokens begin, none of them
_RANDOM_BYTES = 32
_MAX_FILE_BYTES = 2**20
_log = logging.getLogger(__name__)


def make_token(random: bytes) -> str:
    """A token's text from 32 random bytes."""
    if len(random) != _RANDOM_BYTES:
        raise ValueError("a token is made of exactly 32 random bytes")
    return TOKEN_PREFIX + encode_base64url(random).decode()


def hash_token(token: str) -> str:
    """What is stored of it: with so much randomness a plain SHA-256 cannot be searched."""
    return sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def read_attached(
    config_file: Path, ours: Path, known: Iterable[Deployment]
) -> tuple[Path, KvrunConfig]:
    """What is attached: its file without links or ``..``, and what that says.

    ``ours`` is where the control plane keeps what it made; ``known`` are all records of this
    machine, deleted ones too. Raises AttachRefusedError, always with the same words, for a file
    that is missing, that others may write (they could point the control plane at another's
    folder), or that shares file, data folder or key root with ``ours`` or ``known``.
    """
    try:
        return _read(config_file, ours, known)
    except _RefusedError as refused:
        _log.warning("a file was not attached: %s", refused)
    except (OSError, RuntimeError, ValueError, ConfigError, RootError):
        # What is wrong with it may quote it.
        _log.warning("a file was not attached: it cannot be read as a configuration")
    raise AttachRefusedError(
        "the file cannot be attached, and the token is used up",
        hint="It must be the full path of a kvrun.toml on this machine that `kvrun up` takes, "
        "belongs to the control plane's user, is writable by nobody else, and shares no file, "
        "data folder or key root with a deployment that is or was here. The control plane's own "
        "log says more. Ask for another token.",
    )


def spec_of(config: KvrunConfig, name: str) -> DeploymentSpec:
    """What a configuration says, as a spec."""
    deployment, instance = config.deployment, config.instance
    return DeploymentSpec(
        name=name,
        model=deployment.model,
        engine=config.engine.kind,
        stateless=deployment.stateless,
        multi_tenant=config.gateway.multi_tenant,
        context_window=deployment.context_window,
        memory_bytes=instance.memory_bytes,
        disk_bytes=instance.disk_bytes,
    )


class _RefusedError(Exception):
    """Why a file is not attached; it quotes nothing of it."""


def _read(config_file: Path, ours: Path, known: Iterable[Deployment]) -> tuple[Path, KvrunConfig]:
    if not config_file.is_absolute():
        raise _RefusedError("its path is not a full one")
    file = config_file.resolve(strict=True)
    found = file.stat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_FILE_BYTES:
        raise _RefusedError("it is no ordinary file of at most 1 MiB")
    if found.st_uid not in (os.getuid(), 0) or found.st_mode & 0o022:
        raise _RefusedError("other users can write it")
    config = load_config(file, {})
    places = _places(config)
    inside = ours.resolve()
    if any(place.is_relative_to(inside) for place in (file, *places)):
        raise _RefusedError("it lies, or keeps its data, where the control plane keeps deployments")
    for item in known:
        if _same(file, item.config_file.resolve()):
            raise _RefusedError(f"it is the deployment {item.id}")
        if not item.config_file.exists():
            continue
        try:
            theirs = _places(load_config(item.config_file, {}))
        except ConfigError:
            raise _RefusedError(f"nobody can tell where {item.id} keeps its data") from None
        if any(_same(place, other) for place in places for other in theirs):
            raise _RefusedError(f"it shares data folder or key root with {item.id}")
    return file, config


def _places(config: KvrunConfig) -> tuple[Path, ...]:
    """Where a deployment keeps its data and its key root, as they really are."""
    data_dir, address = config.instance.data_dir, config.keys.root_address
    match address:
        case MemoryAddress():
            return (data_dir.resolve(),)
        case FileAddress(None):
            return tuple(path.resolve() for path in (data_dir, *usual_places(data_dir)))
        case FileAddress(Path() as folder):
            root = data_dir / folder
        case _:
            root = config.keys.root_folder or data_dir / f"root-{address.kind}"
    return data_dir.resolve(), root.resolve()


def _same(place: Path, other: Path) -> bool:
    """One file or folder, under whatever names: a mount gives it several."""
    return place == other or (place.exists() and other.exists() and place.samefile(other))
