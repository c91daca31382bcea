"""The token that a deployment's daemons share with its key service, beside the socket."""

import secrets
from pathlib import Path

from kvrun.durable import replace_private_file
from kvrun.keys.errors import KeysError
from kvrun.keys.folder import check_private_file
from kvrun.keys.wire import TOKEN_BYTES


class TokenError(KeysError):
    """The token cannot be read or made."""

    exit_code = 3
    status = 503


def token_path(socket_path: Path) -> Path:
    """Where it is."""
    return socket_path.with_suffix(".token")


def make_token(socket_path: Path) -> bytes:
    """A new token (0600) in the place of an earlier one. Raises TokenError."""
    path = token_path(socket_path)
    token = secrets.token_bytes(TOKEN_BYTES)
    try:
        replace_private_file(path, token)
    except OSError as error:
        raise TokenError(f"{path} cannot be written: {error.strerror}") from error
    return token


def read_token(socket_path: Path) -> bytes:
    """The token of the service at a socket. Raises TokenError."""
    path = token_path(socket_path)
    try:
        check_private_file(path, purpose="key service token")
        token = path.read_bytes()
    except OSError as error:
        raise TokenError(
            f"the key service's token {path} cannot be read: {error.strerror}",
            hint="`kvrun keys serve` makes it; keys.socket names the socket beside it.",
        ) from error
    if len(token) != TOKEN_BYTES:
        raise TokenError(f"{path} does not hold {TOKEN_BYTES} bytes")
    return token
