"""What a key root is worth: one line of ``kvrun doctor``, and warnings at the start."""

from contextlib import suppress

import msgspec

from kvrun.cli.probes import Check, Level
from kvrun.config import KvrunConfig
from kvrun.errors import KvrunError
from kvrun.keys.filesystem import ClaimClass
from kvrun.keys.open_root import probe_root
from kvrun.launch.admin import ask_daemon

_READ = "see docs/roots.md"
_NO_PROOF = "erasures end in a key deletion record, not in a certificate"


def check_root(config: KvrunConfig) -> Check:
    """Whether the root answers, and what a key that it destroyed may be said to be."""
    kind = config.keys.root_address.kind
    if (config.keys.root_secret or "").startswith("fd:"):
        found = f"{kind}: not asked, its secret comes in a descriptor that can be read once"
        return Check("key root", Level.OK, found)
    try:
        claim, reason = probe_root(
            config.keys,
            config.layout.data_dir,
            snapshot_days=config.erasure.root_snapshot_days,
        )
    except KvrunError as error:
        return Check("key root", Level.FAIL, f"{kind}: {error.message}", error.hint or _READ)
    found = f"{kind}, claim class {claim.value}: {reason}"
    if claim is ClaimClass.LOGICAL:
        return Check("key root", Level.WARN, found, f"{_NO_PROOF}; {_READ}")
    return Check("key root", Level.OK, found)


def warning_before_start(config: KvrunConfig) -> str | None:
    """A sentence where the root of a deployment yet to be started proves no erasure."""
    check = check_root(config)
    return None if check.level is Level.OK else _sentence(check.found)


def warning_of_running(config: KvrunConfig) -> str | None:
    """The same, as the running daemon says it; None also where it does not answer."""
    with suppress(KvrunError, msgspec.DecodeError, KeyError, TypeError):
        answer = msgspec.json.decode(ask_daemon(config, "status"))
        erasure = str(answer["protections"]["erasure"])
        if erasure.startswith(ClaimClass.LOGICAL.value):
            return _sentence(erasure)
    return None


def _sentence(found: str) -> str:
    return f"warning: this key root cannot prove that keys are gone, {_NO_PROOF} ({found})"
