"""A deployment's own folder: its ``kvrun.toml``, its API keys, and the gateway's closed door."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from kvrun.config import KvrunConfig
from kvrun.config.layout import DataLayout
from kvrun.config.roots import FileAddress
from kvrun.deployments.errors import DeploymentNotFoundError, SpecError
from kvrun.deployments.spec import API_KEYS_FILE, METRICS_KEY_FILE
from kvrun.durable import replace_private_file
from kvrun.gateway.apikeys import (
    SCOPE_METRICS,
    ApiKeyRecord,
    hash_api_key,
    make_api_key,
    save_api_keys,
)
from kvrun.gateway.draining import DRAINING_FILE
from kvrun.keys.root_place import file_root_folder

METRICS_KEY_ID = "metrics"


def prepare(file: Path, text: str, random_bytes: Callable[[int], bytes]) -> None:
    """Make the folder of ``file`` and what is missing in it, and have the file say ``text``.

    Again does nothing; what a crash left half-made is completed. Raises SpecError.
    """
    place = file.parent
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        key_file, keys_file = place / METRICS_KEY_FILE, place / API_KEYS_FILE
        if not keys_file.exists():
            key = make_api_key(random_bytes(32))
            replace_private_file(key_file, f"{key}\n".encode())
            record = ApiKeyRecord(
                id=METRICS_KEY_ID, sha256=hash_api_key(key), scopes=(SCOPE_METRICS,)
            )
            save_api_keys(keys_file, [record])
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            replace_private_file(file, text.encode())
    except OSError as error:
        raise SpecError(f"{place} cannot be written: {error.strerror}") from None


def close_gateway(config: KvrunConfig) -> None:
    """Have the gateway refuse new requests (503) within a second; again does nothing."""
    path = _door(config)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)


def open_gateway(config: KvrunConfig) -> None:
    """Let requests in again."""
    _door(config).unlink(missing_ok=True)


def remove_data(config: KvrunConfig, made_in: Path | None = None) -> None:
    """Remove cached ciphertext, the emptied key folder and every credential; again does nothing.

    ``made_in`` is the folder that ``prepare`` made, None for a deployment of somebody else: of
    that nothing outside of its data folder is touched. What stays: the log and what was collected
    of it, certificates, the erasure ledger, the public halves that verify them, and a key root
    outside of the data folder, which others may use too, but for the usual one in ``made_in``.
    Raises RootError where there are two.
    """
    layout, deployment = config.layout, config.deployment
    folders = [
        layout.keys,  # first, and at once: half a key folder could not be opened again
        layout.storage(deployment.workspace, deployment.name) / "kv",
        layout.run,
        layout.data_dir / "gateway",
    ]
    root, state = config.keys.root_address, config.gateway.state_dir
    beside = None
    if isinstance(root, FileAddress):
        found = file_root_folder(root, layout.data_dir)
        folders.append(found)
        if made_in is not None and root.folder is None:
            beside = found
    if state is not None:
        folders.append(state)
    for path in folders:
        if path != beside and not _is_its_own(path, layout):
            continue
        aside = path.with_name(f"{path.name}.removed")
        if path.exists():
            if aside.exists():
                shutil.rmtree(aside)
            path.rename(aside)
        if aside.exists():
            shutil.rmtree(aside)
    files = [layout.api_keys]
    if config.gateway.api_keys_file is not None:
        files.append(config.gateway.api_keys_file)
    credentials = [path for path in files if _is_its_own(path, layout)]
    if made_in is not None:
        credentials += [made_in / API_KEYS_FILE, made_in / METRICS_KEY_FILE]
    for path in credentials:
        path.unlink(missing_ok=True)


def read_tail(path: Path, size_bytes: int) -> str:
    """The last whole lines of a log. Raises DeploymentNotFoundError where there is none."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - size_bytes))
            data = file.read(size_bytes)
    except OSError as error:
        raise DeploymentNotFoundError(f"there is no log {path.name}: {error.strerror}") from None
    if end > size_bytes:
        data = data.partition(b"\n")[2]
    return data.decode("utf-8", "replace")


def _is_its_own(path: Path, layout: DataLayout) -> bool:
    """Whether it lies within the data folder, and nothing that stays lies within it."""
    kept = (layout.audit, layout.control, layout.erasure, layout.signing_keys, layout.storage_root)
    within, found = layout.data_dir.resolve(), path.resolve()
    return within in found.parents and not any(
        stays.resolve().is_relative_to(found) for stays in kept
    )


def _door(config: KvrunConfig) -> Path:
    return (config.gateway.state_dir or config.layout.data_dir / "gateway") / DRAINING_FILE
