"""A checkpoint that a witness keeps or has timestamped, as evidence for a verification. Pure."""

from dataclasses import dataclass

from kvrun.audit.verdict import Code


@dataclass(frozen=True, slots=True)
class Attestation:
    """``by`` says of ``note`` (a signed checkpoint) that it was there at ``time`` (seconds).

    ``code``: ``COMMITTED`` or ``TIMESTAMPED``. ``problem``: why the evidence does not hold.
    """

    note: bytes
    by: str
    time: float
    code: Code
    problem: str = ""
