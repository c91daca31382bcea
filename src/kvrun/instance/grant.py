"""What the daemon tells a gateway of a session; apart from the daemon, which holds keys."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionGrant:
    """What a gateway needs to stamp a claim. Generation 0 is a stateless one-request salt."""

    salt: str
    generation: int
