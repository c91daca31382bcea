"""What is tried after an erasure: does a copy open, is a key found, or its epoch, or a block."""

from __future__ import annotations

from collections.abc import Sequence

from kvrun.cache.store import CacheStore
from kvrun.erasure.certificate import Outcome, VerificationEntry
from kvrun.erasure.job import Job
from kvrun.keys.canary import KeyCanary
from kvrun.keys.source import KeySelecting


def checks_after(
    keys: KeySelecting, cache: CacheStore, job: Job, canaries: Sequence[KeyCanary]
) -> list[VerificationEntry]:
    """All of them. ``canaries`` are copies of wrapped keys from before."""
    return [
        *_key_checks(keys, job, canaries),
        _epoch_check(keys, job),
        _ciphertext_check(cache, job),
    ]


def _key_checks(
    keys: KeySelecting, job: Job, canaries: Sequence[KeyCanary]
) -> list[VerificationEntry]:
    living = keys.living([key.key_id for key in job.keys])
    opened = keys.opens(canaries)
    canary = Outcome.FAIL if opened else Outcome.PASS
    detail = f"{len(opened)} of {len(canaries)} copies of wrapped keys open"
    if not canaries:
        canary, detail = Outcome.SKIPPED, "no copy from before: a restart, or no readable key"
    assert job.root is not None
    return [
        VerificationEntry(name="canary", outcome=canary, detail=detail),
        VerificationEntry(
            name="key_lookup",
            outcome=Outcome.FAIL if living else Outcome.PASS,
            detail=f"{len(living)} of {len(job.keys)} keys exist",
        ),
        VerificationEntry(
            name="slot_read_back",
            outcome=Outcome.PASS if job.root.read_back else Outcome.SKIPPED,
            detail=f"zeros, read {job.root.read_back}"
            if job.root.read_back
            else "a restart finished the destruction",
        ),
    ]


def _epoch_check(keys: KeySelecting, job: Job) -> VerificationEntry:
    assert job.root is not None
    if keys.root().root_id.hex() != job.root_id:
        detail = "the root of that time is no more"
        return VerificationEntry(name="epoch_key", outcome=Outcome.PASS, detail=detail)
    lives = keys.epoch_lives(job.root.epoch_destroyed)
    return VerificationEntry(
        name="epoch_key",
        outcome=Outcome.FAIL if lives else Outcome.PASS,
        detail=f"epoch {job.root.epoch_destroyed} is {'still' if lives else 'not'} at the root",
    )


def _ciphertext_check(cache: CacheStore, job: Job) -> VerificationEntry:
    left = sum(
        sum(cache.measure(key.tenant_ref, key.session_ref)[::2])
        for key in job.keys
        if key.session_ref
    )
    return VerificationEntry(
        name="ciphertext",
        outcome=Outcome.SKIPPED if left else Outcome.PASS,
        detail=f"{left} unreadable blocks are left",
    )
