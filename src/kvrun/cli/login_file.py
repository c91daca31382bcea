"""Logins that are kept on this machine: one a control plane, in a file for nobody else."""

import os
import time
from pathlib import Path

import msgspec

from kvrun.client.address import DEFAULT_URL, KEY_VARIABLE, AddressError
from kvrun.client.errors import ClientError
from kvrun.durable import replace_private_file
from kvrun.errors import KvrunError

_MOST_BYTES = 65_536


class KeptLogin(msgspec.Struct, frozen=True, kw_only=True):
    """A token, whose it is, and until when (seconds since 1970)."""

    token: str
    name: str
    expires_at: int


class NotLoggedInError(KvrunError):
    """What is asked for is a person's to do, and nobody is logged in here."""

    exit_code = 2
    status = 401


def login_file() -> Path:
    """Where they are: ``kvrun/logins.json`` in the user's folder of settings."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path("~/.config").expanduser())
    return Path(base) / "kvrun" / "logins.json"


def kept_logins() -> dict[str, KeptLogin]:
    """Those that have not ended, by the control plane's address.

    Raises AddressError for a file that others may read or that is none of ours.
    """
    file = login_file()
    try:
        with file.open("rb") as opened:
            if os.fstat(opened.fileno()).st_mode & 0o077:
                raise AddressError(
                    f"the file {file} with logins may be read by others",
                    hint=f"Run: chmod 600 {file}",
                )
            found = msgspec.json.decode(opened.read(_MOST_BYTES), type=dict[str, KeptLogin])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError):
        raise AddressError(
            f"{file} with logins cannot be read", hint="Remove it, and run: kvrun login"
        ) from None
    now = time.time()
    return {url: login for url, login in found.items() if login.expires_at > now}


def keep_login(url: str, login: KeptLogin | None) -> None:
    """Keep a login in place of the one before, or none. Raises ClientError and AddressError."""
    logins = {other: kept for other, kept in kept_logins().items() if other != url}
    if login is not None:
        logins[url] = login
    file = login_file()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_private_file(file, msgspec.json.encode(logins))
    except OSError as error:
        raise ClientError(f"{file} cannot be written: {error.strerror}") from None


def the_address(given: str) -> str:
    """The control plane that was named, else the only one with a login, else the usual one."""
    if given:
        return given.rstrip("/")
    urls = list(kept_logins())
    return urls[0] if len(urls) == 1 else DEFAULT_URL


def the_login(url: str) -> KeptLogin:
    """The person's login at a control plane. Raises NotLoggedInError."""
    found = kept_logins().get(url)
    if found is not None:
        return found
    key = os.environ.get(KEY_VARIABLE)
    raise NotLoggedInError(
        f"nobody is logged in at {url}"
        + (", and an API key is nobody's second person" if key else ""),
        hint=f"Run: kvrun login --url {url}",
    )
