"""What the clients wait for, and what they say when it does not come: pure."""

from collections.abc import Callable

from kvrun.client.results.deployments import Deployment
from kvrun.client.results.evidence import ErasureProgress


def in_state(state: str) -> Callable[[Deployment], bool]:
    """Whether a deployment is in the state."""
    return lambda deployment: deployment.state == state


def reached(state: str) -> str:
    """That a deployment comes into the state, in words."""
    return f"the state {state!r}"


def certified(progress: ErasureProgress) -> bool:
    """Whether an erasure has its certificate."""
    return progress.state == "certified"


def erasure_done(erasure_id: str) -> str:
    """That an erasure is certified, in words."""
    return f"the certificate of the erasure {erasure_id}"
