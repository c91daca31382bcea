"""Which records an auditor's sample takes: anyone with the seed draws the same. Pure.

``docs/spec/evidence-bundle.md`` specifies the draw.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import count

DOMAIN = "kvrun-evidence-sample/v1"


@dataclass(frozen=True, slots=True, order=True)
class Frame:
    """The records of one log from which is drawn: ``first`` up to but without ``end``."""

    deployment: str
    log: str
    first: int
    end: int


@dataclass(frozen=True, slots=True, order=True)
class Drawn:
    """One record that was drawn."""

    deployment: str
    log: str
    seq: int


def draw(frames: Sequence[Frame], records: int, seed: str) -> list[Drawn]:
    """``records`` different ones of all frames together, or all where there are no more; sorted.

    The n-th number is the SHA-256 of domain, seed and n, each followed by a newline, modulo the
    number of records; a number that was drawn before is passed over.
    """
    frames = sorted(frames)
    total = sum(frame.end - frame.first for frame in frames)
    wanted = min(records, total)
    if wanted == total:
        chosen = set(range(total))
    else:
        chosen = set()
        for number in count():
            if len(chosen) == wanted:
                break
            digest = sha256(f"{DOMAIN}\n{seed}\n{number}\n".encode()).digest()
            chosen.add(int.from_bytes(digest, "big") % total)
    found, below, places = [], 0, iter(sorted(chosen))
    place = next(places, None)
    for frame in frames:
        size = frame.end - frame.first
        while place is not None and place < below + size:
            found.append(Drawn(frame.deployment, frame.log, frame.first + place - below))
            place = next(places, None)
        below += size
    return found
