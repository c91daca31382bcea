"""What a self-test needs of a deployment; a real one, or a simulated one that leaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvrun.errors import KvrunError
from kvrun.instance.canary_release import CANARY_PREFIX as CANARY_PREFIX
from kvrun.isolation.report import Check


class SelfTestError(KvrunError):
    """A self-test cannot be made here."""

    exit_code = 3
    status = 409


@dataclass(frozen=True, slots=True)
class Canary:
    """A made-up user's session; ``user`` is empty in a deployment of a single tenant."""

    user: str
    session: str


@dataclass(frozen=True, slots=True)
class Reply:
    """One greedy answer. ``cached_tokens`` is what the answer itself says it reused."""

    text: str
    prompt_tokens: int
    cached_tokens: int
    ttft_us: int
    request_id: str


@dataclass(frozen=True, slots=True)
class TierTokens:
    """Prompt tokens that a request reused from each tier, by the daemon's own count."""

    gpu: int = 0
    memory: int = 0
    disk: int = 0
    object: int = 0

    @property
    def total(self) -> int:
        """From any tier."""
        return self.gpu + self.memory + self.disk + self.object


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the deployment. ``tiers`` are those it keeps sealed blocks on.

    ``keeps_pages``: the engine itself keeps KV of a request that ended.
    """

    workspace: str
    deployment: str
    engine: str
    stateless: bool
    many_users: bool
    tiers: tuple[str, ...]
    can_restart: bool
    keeps_pages: bool = True


class Target(Protocol):
    """A running deployment. Everything raises KvrunError where it cannot be reached."""

    def facts(self) -> Facts:
        """What it is."""

    def ask(self, canary: Canary, prompt: str) -> Reply:
        """A greedy answer of a few tokens, through the gateway."""

    def reused(self, reply: Reply) -> TierTokens:
        """What the daemon says an answer reused."""

    def seal(self, reply: Reply) -> None:
        """Wait until an answer's blocks are sealed and as far down as they go."""

    def release_pages(self, canary: Canary) -> bool:
        """Have the engine let go of a canary's pages; False where none confirmed."""

    def release_above(self, canary: Canary, tier: str) -> None:
        """Take a canary's blocks out of every tier that is asked before ``tier``."""

    def restart(self) -> None:
        """Restart daemon and engine, and wait until they serve."""

    def doors(self, canary: Canary, prompt: str) -> Sequence[Check]:
        """Try what no client may do, with a prompt that the canary sent before."""

    def erase(self, canaries: Sequence[Canary]) -> Sequence[str]:
        """Erase the canaries; the certificates' ids."""
