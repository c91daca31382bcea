"""Launch tokens and the claim key: made for each launch, handed over without leaving a trace.

``kvrun up`` gives each process its part through an inherited descriptor. Two files exist besides,
0600 in the 0700 run folder, while it runs: the admin token for the command line, and the engine
token, since an engine's workers inherit no descriptor. The claim key's private half is in no file.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.claims.keyfile import create_signing_key, load_signing_key, load_verification_key
from kvrun.config import DataLayout, KvrunConfig
from kvrun.durable import replace_private_file
from kvrun.errors import KvrunError
from kvrun.instance.launch_secrets import LaunchSecrets
from kvrun.launch.supervisor import TOKEN_FD_VARIABLE

TOKEN_BYTES = 32
_ROLES = ("engine_token", "gateway_token", "admin_token")


class LaunchSecretsError(KvrunError):
    """Launch tokens are missing, unreadable, malformed or readable by others."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class Launch:
    """The secrets of one launch: a token a role (hex) and the key that signs claims."""

    engine_token: str = field(repr=False)
    gateway_token: str = field(repr=False)
    admin_token: str = field(repr=False)
    claim_key: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def create(cls, random_bytes: Callable[[int], bytes] = os.urandom) -> "Launch":
        """Fresh tokens and a fresh claim key."""
        engine, gateway, admin = (random_bytes(TOKEN_BYTES).hex() for _ in range(3))
        key = Ed25519PrivateKey.from_private_bytes(random_bytes(32))
        return cls(engine, gateway, admin, key)

    @property
    def claim_public_key(self) -> bytes:
        """The 32 raw bytes that verify claims."""
        return self.claim_key.public_key().public_bytes_raw()

    def for_instance(self) -> bytes:
        """What the daemon reads from its descriptor."""
        tokens = {role: getattr(self, role) for role in _ROLES}
        return _encode(tokens | {"claim_public_keys": [self.claim_public_key.hex()]})

    def for_gateway(self) -> bytes:
        """What the gateway reads from its descriptor."""
        seed = self.claim_key.private_bytes_raw().hex()
        return _encode({"token": self.gateway_token, "claim_seed": seed})

    def write_files(self, layout: DataLayout) -> None:
        """Write the files of this launch; ``remove_files`` takes them away again."""
        prepare_run_folder(layout)
        replace_private_file(layout.admin_token, f"{self.admin_token}\n".encode())
        replace_private_file(layout.engine_token, f"{self.engine_token}\n".encode())
        replace_private_file(layout.claim_public_key, f"{self.claim_public_key.hex()}\n".encode())


@dataclass(frozen=True, slots=True)
class GatewaySecrets:
    """The gateway's part."""

    token: str = field(repr=False)
    claim_key: Ed25519PrivateKey = field(repr=False)


def remove_files(layout: DataLayout) -> None:
    """Remove the files of a launch, so that nothing of it works any more."""
    for path in (layout.admin_token, layout.engine_token, layout.claim_public_key, layout.state):
        path.unlink(missing_ok=True)


def instance_secrets(config: KvrunConfig, environment: Mapping[str, str]) -> LaunchSecrets:
    """The daemon's secrets: from its descriptor, or from files when it runs alone.

    Alone, files that do not exist are made. Raises LaunchSecretsError.
    """
    inherited = _read_descriptor(environment)
    if inherited is None:
        return _alone(config)
    try:
        keys = tuple(bytes.fromhex(key) for key in inherited["claim_public_keys"])
        engine, gateway, admin = (_token(inherited[role]) for role in _ROLES)
    except (KeyError, TypeError, ValueError) as error:
        raise LaunchSecretsError(f"the inherited launch tokens are malformed: {error}") from None
    return LaunchSecrets(engine, gateway, admin, keys)


def gateway_secrets(config: KvrunConfig, environment: Mapping[str, str]) -> GatewaySecrets:
    """The gateway's secrets: from its descriptor, or from the daemon's files when it runs alone.

    Raises LaunchSecretsError.
    """
    inherited = _read_descriptor(environment)
    if inherited is not None:
        try:
            seed = bytes.fromhex(inherited["claim_seed"])
            return GatewaySecrets(
                _token(inherited["token"]), Ed25519PrivateKey.from_private_bytes(seed)
            )
        except (KeyError, TypeError, ValueError, InvalidKey) as error:
            raise LaunchSecretsError(f"the inherited launch token is malformed: {error}") from None
    path = config.instance.token_file or config.layout.tokens
    tokens = _read_tokens(path)
    key_file = config.gateway.claim_key_file or config.layout.claim_key
    return GatewaySecrets(tokens["gateway_token"], load_signing_key(key_file))


def prepare_run_folder(layout: DataLayout) -> None:
    """Make the run folder (0700). Raises LaunchSecretsError where it cannot be."""
    try:
        layout.run.mkdir(mode=0o700, parents=True, exist_ok=True)
        layout.run.chmod(0o700)
    except OSError as error:
        raise LaunchSecretsError(
            f"{layout.run} cannot be used: {error.strerror}",
            hint="instance.data_dir must be a folder that this user can write",
        ) from error


def _alone(config: KvrunConfig) -> LaunchSecrets:
    layout = config.layout
    prepare_run_folder(layout)
    path = config.instance.token_file or layout.tokens
    if not path.exists():
        made = {role: os.urandom(TOKEN_BYTES).hex() for role in _ROLES}
        replace_private_file(path, f"{json.dumps(made)}\n".encode())
    tokens = _read_tokens(path)
    public = config.instance.claim_public_key_file
    if public is not None:
        public_key = load_verification_key(public).public_bytes_raw()
    else:
        key_file = config.gateway.claim_key_file or layout.claim_key
        key = load_signing_key(key_file) if key_file.exists() else create_signing_key(key_file)
        public_key = key.public_key().public_bytes_raw()
        replace_private_file(layout.claim_public_key, f"{public_key.hex()}\n".encode())
    replace_private_file(layout.admin_token, f"{tokens['admin_token']}\n".encode())
    replace_private_file(layout.engine_token, f"{tokens['engine_token']}\n".encode())
    return LaunchSecrets(**tokens, claim_public_keys=(public_key,))


def _read_tokens(path: Path) -> dict[str, str]:
    try:
        if path.stat().st_mode & 0o077:
            raise LaunchSecretsError(
                f"{path} may be read by other users", hint=f"Run: chmod 600 {path}"
            )
        content = json.loads(path.read_bytes())
        return {role: _token(content[role]) for role in _ROLES}
    except OSError as error:
        raise LaunchSecretsError(
            f"the launch tokens {path} cannot be read: {error.strerror}",
            hint="start `kvrun instance` first, or use `kvrun up`; instance.token_file names them",
        ) from None
    except (ValueError, KeyError, TypeError):
        raise LaunchSecretsError(
            f"{path} does not hold launch tokens", hint=f"JSON with {', '.join(_ROLES)} in hex"
        ) from None


def _read_descriptor(environment: Mapping[str, str]) -> dict[str, Any] | None:
    text = environment.get(TOKEN_FD_VARIABLE)
    if text is None:
        return None
    try:
        with os.fdopen(int(text), "rb") as file:
            content = json.loads(file.read(1 << 16))
    except (OSError, ValueError) as error:
        raise LaunchSecretsError(
            f"{TOKEN_FD_VARIABLE}={text} cannot be read: {error}",
            hint="`kvrun up` sets it for the processes it starts; unset it elsewhere",
        ) from None
    if not isinstance(content, dict):
        raise LaunchSecretsError(f"{TOKEN_FD_VARIABLE}={text} holds no launch tokens")
    return content


def _token(value: object) -> str:
    if not isinstance(value, str) or len(bytes.fromhex(value)) != TOKEN_BYTES:
        raise ValueError(f"a token is {TOKEN_BYTES} bytes in hex")
    return value


def _encode(content: Mapping[str, object]) -> bytes:
    return json.dumps(content).encode()
