"""What a deployment's key root is worth, said before it has run."""

from kvrun.config import KvrunConfig
from kvrun.config.roots import FileAddress, MemoryAddress, OpenBaoAddress, Pkcs11Address
from kvrun.keys.filesystem import ClaimClass
from kvrun.keys.open_root import probe_root


def root_warning(config: KvrunConfig) -> str:
    """A sentence where erasures can end in no certificate, as far as this machine alone can tell.

    Nothing is made, and no other system is asked: what such a root is worth its daemon says once it
    runs. Raises KeysError and OSError.
    """
    address, days = config.keys.root_address, config.erasure.root_snapshot_days
    if isinstance(address, MemoryAddress | FileAddress):
        claim, reason = probe_root(config.keys, config.layout.data_dir, snapshot_days=days)
        return _sentence(reason) if claim is ClaimClass.LOGICAL else ""
    if isinstance(address, OpenBaoAddress | Pkcs11Address) and days is None:
        return _sentence("for how long its snapshots are kept is not declared")
    return ""


def _sentence(reason: str) -> str:
    return (
        "The key root cannot prove that keys are gone: erasures here end in a key deletion record, "
        f"not in a certificate ({reason})."
    )
