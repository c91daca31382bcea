"""The steps of an erasure, as people follow them. Pure."""

from typing import NamedTuple

from kvrun.erasure.job import JobState


class Step(NamedTuple):
    """One step: its name, what it means, and ``done``, ``now``, ``failed`` or ``later``."""

    name: str
    text: str
    state: str


_TEXTS = (
    (JobState.TOMBSTONED, "New requests of this scope go on without the cache"),
    (JobState.DRAINED, "Running requests ended, and nothing is in flight"),
    (JobState.DESTROYED, "Keys are destroyed, and the epoch key above them"),
    (JobState.SCRUBBED, "Engines zeroed their pages, or are named in the certificate"),
    (JobState.UNLINKED, "Ciphertext is gone from memory and disk"),
    (JobState.PROVEN, "Opening was tried, and fails"),
    (JobState.CERTIFIED, "The certificate is signed and stored"),
)
"""In the order of ``JobState``; the state says that the step is done."""


def progress(state: str, *, failed: bool) -> list[Step]:
    """The steps where an erasure is in ``state`` (empty: it has not begun)."""
    names = [name.value for name, _ in _TEXTS]
    reached = names.index(state) + 1 if state in names else 0
    steps = []
    for number, (name, text) in enumerate(_TEXTS):
        if number < reached:
            kind = "done"
        elif number == reached:
            kind = "failed" if failed else "now"
        else:
            kind = "later"
        steps.append(Step(name.value, text, kind))
    return steps
