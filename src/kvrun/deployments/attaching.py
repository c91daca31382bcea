"""Registering an engine that somebody else runs: one-time tokens, and what its file says."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from kvrun.claims.claim import encode_base64url
from kvrun.config import ConfigError, KvrunConfig, load_config
from kvrun.deployments.model import DeploymentSpec

TOKEN_LIFETIME_S = 3600.0
TOKEN_PREFIX = "kva_"  # noqa: S105 - how tokens begin, none of them
_RANDOM_BYTES = 32


def make_token(random: bytes) -> str:
    """A token's text from 32 random bytes."""
    if len(random) != _RANDOM_BYTES:
        raise ValueError("a token is made of exactly 32 random bytes")
    return TOKEN_PREFIX + encode_base64url(random).decode()


def hash_token(token: str) -> str:
    """What is stored of it: with so much randomness a plain SHA-256 cannot be searched."""
    return sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def read_attached(config_file: Path) -> KvrunConfig:
    """The configuration of what is attached.

    Raises ConfigError for a file that is not this user's alone to write: who may change it could
    point the control plane at another's folder.
    """
    if not config_file.is_absolute():
        raise ConfigError(f"{str(config_file)[:200]!r} must be a full path on this machine")
    try:
        found = config_file.stat()
    except OSError as error:
        raise ConfigError(f"{config_file} cannot be read: {error.strerror}") from None
    if found.st_uid not in (os.getuid(), 0) or found.st_mode & 0o022:
        raise ConfigError(
            f"{config_file} can be written by other users",
            hint=f"It must belong to this user: chmod go-w {config_file}",
        )
    return load_config(config_file, {})


def spec_of(config: KvrunConfig, name: str) -> DeploymentSpec:
    """What a configuration says, as a spec."""
    deployment, instance = config.deployment, config.instance
    return DeploymentSpec(
        name=name,
        model=deployment.model,
        engine=config.engine.kind,
        stateless=deployment.stateless,
        multi_tenant=config.gateway.multi_tenant,
        context_window=deployment.context_window,
        memory_bytes=instance.memory_bytes,
        disk_bytes=instance.disk_bytes,
    )
