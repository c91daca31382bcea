"""What the clients wait for, and what they say when it does not come: pure."""

from collections.abc import Callable

from kvrun.client.errors import WaitedInVainError
from kvrun.client.results.deployments import Deployment
from kvrun.client.results.evidence import ErasureProgress


def in_state(state: str) -> Callable[[Deployment], bool]:
    """Whether a deployment is in the state. Raises WaitedInVainError where it stays in another."""

    def there(deployment: Deployment) -> bool:
        if deployment.state == state:
            return True
        # One that failed is started again where a time for that is set.
        given_up = deployment.state == "failed" and deployment.restart_at is None
        if given_up or deployment.state == "deleted":
            why = f": {deployment.reason}" if deployment.reason else ""
            raise WaitedInVainError(f"the deployment is {deployment.state}, not {state}{why}")
        return False

    return there


def reached(state: str) -> str:
    """That a deployment comes into the state, in words."""
    return f"the state {state!r}"


def certified(progress: ErasureProgress) -> bool:
    """Whether an erasure has its certificate."""
    return progress.state == "certified"


def erasure_done(erasure_id: str) -> str:
    """That an erasure is certified, in words."""
    return f"the certificate of the erasure {erasure_id}"
