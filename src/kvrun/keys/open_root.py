"""Opening the root that the configuration names, and asking a root what it is without opening it.

What only some roots need (a PKCS#11 binding, the AWS SDK) is imported here, when such a root is
opened: it is an optional part of the installation.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from kvrun.config.keys import KeysSection
from kvrun.config.roots import (
    AwsKmsAddress,
    FileAddress,
    MemoryAddress,
    OpenBaoAddress,
    Pkcs11Address,
)
from kvrun.keys.errors import RootError
from kvrun.keys.file_root import FileRoot
from kvrun.keys.filesystem import ClaimClass, filesystem_facts
from kvrun.keys.keeper import Keeper
from kvrun.keys.kept_root import KeptRoot, claim_of
from kvrun.keys.memory_root import MemoryRoot
from kvrun.keys.openbao import OpenBaoKeeper
from kvrun.keys.root import Root
from kvrun.keys.root_place import file_root_folder
from kvrun.keys.secret_source import SecretSource


def open_root(
    settings: KeysSection,
    data_dir: Path,
    *,
    strict: bool,
    snapshot_days: int | None,
    environ: Mapping[str, str] = os.environ,
) -> Root:
    """The root of ``settings``, opened or made; ``strict`` refuses memory that is not locked.

    ``snapshot_days``: how long snapshots of the root are kept; None when nobody declared it.
    Raises RootError and its kinds, FolderBusyError, FolderPermissionError or MemoryLockError.
    """
    address = settings.root_address
    if isinstance(address, MemoryAddress):
        return MemoryRoot(strict=strict)
    if isinstance(address, FileAddress):
        folder = file_root_folder(address, data_dir)
        return FileRoot(folder, strict=strict, snapshot_retention_days=snapshot_days)
    keeper = _open_keeper(settings, environ)
    try:
        return KeptRoot(
            _folder(settings, data_dir),
            keeper,
            strict=strict,
            snapshot_retention_days=snapshot_days,
        )
    except BaseException:
        keeper.close()
        raise


def probe_root(
    settings: KeysSection,
    data_dir: Path,
    *,
    snapshot_days: int | None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[ClaimClass, str]:
    """What the root may claim, and why, found without making or changing anything.

    A root in another system is asked; RootUnavailableError or RootRevokedError when that fails.
    """
    address = settings.root_address
    if isinstance(address, MemoryAddress):
        return ClaimClass.CRYPTOGRAPHIC, "keys only in memory"
    if isinstance(address, FileAddress):
        disk = filesystem_facts(_nearest(file_root_folder(address, data_dir)))
        return disk.claim, disk.reason
    keeper = _open_keeper(settings, environ)
    try:
        keeper.greet()
        disk = filesystem_facts(_nearest(_folder(settings, data_dir)))
        return claim_of(keeper.facts, snapshot_days, disk)
    finally:
        keeper.close()


def _open_keeper(settings: KeysSection, environ: Mapping[str, str]) -> Keeper:
    address = settings.root_address
    if isinstance(address, OpenBaoAddress):
        return OpenBaoKeeper(
            url=address.url,
            mount=address.mount,
            key=address.key,
            token=SecretSource(settings.root_secret or "", environ, what="OpenBao token"),
            namespace=settings.root_namespace,
            ca_file=settings.root_ca_file,
            timeout_s=settings.root_timeout_s,
        )
    if isinstance(address, Pkcs11Address):
        try:
            from kvrun.keys.pkcs11_token import Pkcs11Keeper
        except ImportError as error:
            raise _missing("pkcs11", error) from None
        return Pkcs11Keeper(
            module=address.module,
            token=address.token,
            key=address.key,
            pin=SecretSource(settings.root_secret or "", environ, what="PIN"),
        )
    assert isinstance(address, AwsKmsAddress)
    try:
        from kvrun.keys.aws_kms import AwsKmsKeeper
    except ImportError as error:
        raise _missing("aws", error) from None
    return AwsKmsKeeper(arn=address.arn, region=address.region, timeout_s=settings.root_timeout_s)


def _folder(settings: KeysSection, data_dir: Path) -> Path:
    return settings.root_folder or data_dir / f"root-{settings.root_address.kind}"


def _nearest(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _missing(extra: str, error: ImportError) -> RootError:
    return RootError(
        f"This root needs the Python package {error.name}, which is not installed",
        hint=f'pip install "kvrun[{extra}]"',
    )
