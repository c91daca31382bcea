"""What a launch gives the daemon: who may connect to it, and whose claims it believes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvrun.instance.protocol import Role


@dataclass(frozen=True, slots=True)
class LaunchSecrets:
    """A token a role (hex) and the claim keys (32 raw bytes each)."""

    engine_token: str = field(repr=False)
    gateway_token: str = field(repr=False)
    admin_token: str = field(repr=False)
    claim_public_keys: tuple[bytes, ...]

    def tokens(self) -> Mapping[Role, str]:
        """The token of each role."""
        return {
            Role.SCHEDULER: self.engine_token,
            Role.WORKER: self.engine_token,
            Role.GATEWAY: self.gateway_token,
            Role.ADMIN: self.admin_token,
        }
