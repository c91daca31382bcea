"""Keys in the transit engine of OpenBao, or of a Vault that speaks the same API.

One transit key for each deployment; each of its versions is the key of one epoch. Destroying
raises ``min_decryption_version`` and trims, after which OpenBao itself has no way back but a
restored snapshot. API: openbao.org/api-docs/secret/transit.
"""

import base64
import http.client
import re
import ssl
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kvrun.keys.errors import (
    EpochGoneError,
    KeysError,
    RootError,
    RootRevokedError,
    RootUnavailableError,
    WrapError,
)
from kvrun.keys.filesystem import ClaimClass
from kvrun.keys.keeper import KeeperFacts
from kvrun.keys.quiet_base64 import decode_into, encode
from kvrun.keys.quiet_http import QuietHttp
from kvrun.keys.root import KEY_BYTES
from kvrun.keys.secret_source import SecretSource

MAX_ANSWER_BYTES = 1 << 18
KEY_TYPE = "aes256-gcm96"


class OpenBaoKeeper:
    """The versions of one transit key. Connects lazily; see :class:`kvrun.keys.keeper.Keeper`.

    ``url`` is scheme, host and port. ``ca_file``: PEM file with the certificates to trust instead
    of the system's. ``timeout_s`` bounds connecting, sending and each silence of the server.
    """

    def __init__(
        self,
        *,
        url: str,
        mount: str,
        key: str,
        token: SecretSource,
        namespace: str | None = None,
        ca_file: Path | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        self._mount, self._key = mount, key
        self._token = token
        self._facts = KeeperFacts(
            kind="openbao",
            name=f"transit key {mount}/{key} at {url}",
            destroys=True,
            claim=ClaimClass.DEVICE,
            reason="key versions are trimmed in OpenBao; a restored snapshot of it, or its old "
            "storage together with its unseal keys, would bring them back",
        )
        self._headers = {"X-Vault-Request": "true", "X-Vault-Token": token.read()}
        if namespace:
            self._headers["X-Vault-Namespace"] = namespace
        try:
            trust = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
        except OSError as error:
            raise RootError(f"The CA file {ca_file} cannot be used: {error}") from None
        self._http = QuietHttp(
            url, trust=trust, timeout_s=timeout_s, max_answer_bytes=MAX_ANSWER_BYTES
        )

    @property
    def facts(self) -> KeeperFacts:
        """See :class:`Keeper`."""
        return self._facts

    def greet(self) -> None:
        """See :class:`Keeper`."""
        key = self._find()
        if key is not None:
            self._require_sound(key)

    def bind(self, root_id: bytes, *, fresh: bool) -> None:
        """See :class:`Keeper`. A missing key is made when ``fresh``, where the token may do so."""
        key = self._find()
        if key is None:
            if not fresh:
                raise RootRevokedError(f"There is no {self._facts.name} any more")
            # What may not be changed later is said now: nothing leaves, nothing is restored.
            settings = {"type": KEY_TYPE, "exportable": False, "allow_plaintext_backup": False}
            self._call("POST", f"keys/{self._key}", settings)
            key = self._read()
        self._require_sound(key)
        if fresh and key.latest_version != 1:
            raise RootError(
                f"The {self._facts.name} is at version {key.latest_version}: it was used before, "
                "and destroying its older versions could destroy another deployment's keys",
                hint="Give each deployment a transit key of its own, fresh or still to be made.",
            )

    def new_key(self, after: int) -> int:
        """See :class:`Keeper`: the transit key is rotated."""
        self._call("POST", f"keys/{self._key}/rotate", {})
        version = self._read().latest_version
        if version <= after:
            raise RootError(
                f"The {self._facts.name} is at version {version}, and version {after} was in use",
                hint="An older state of OpenBao was restored.",
            )
        return version

    def live(self, refs: Collection[int]) -> set[int]:
        """See :class:`Keeper`."""
        key = self._find()
        if key is None:
            return set()
        oldest = max(key.min_decryption_version, key.min_available_version)
        return {ref for ref in refs if oldest <= ref <= key.latest_version}

    def encrypt(self, ref: int, context: bytes, secret: memoryview) -> bytes:
        """See :class:`Keeper`."""
        text = encode(secret)
        body = bytearray(msgspec.json.encode(self._bound(context) | {"key_version": ref}))
        body[-1:] = b',"plaintext":"'
        body += text
        body += b'"}'
        text[:] = bytes(len(text))
        try:
            answer = self._call("POST", f"encrypt/{self._key}", body)
        finally:
            body[:] = bytes(len(body))
        ciphertext = _decoded(answer, _Encrypted).ciphertext
        if not ciphertext.startswith(f"vault:v{ref}:") or len(ciphertext) > 430:
            raise RootError(f"The {self._facts.name} answered with a ciphertext of another version")
        return ciphertext.encode()

    def decrypt_into(self, ref: int, context: bytes, wrapped: bytes, out: memoryview) -> None:
        """See :class:`Keeper`."""
        try:
            text = wrapped.decode("ascii")
        except UnicodeDecodeError:
            raise WrapError("A wrapped key is no transit ciphertext") from None
        if not text.startswith(f"vault:v{ref}:"):
            raise WrapError(f"A wrapped key is no transit ciphertext of version {ref}")
        body = self._bound(context) | {"ciphertext": text}
        answer = self._call("POST", f"decrypt/{self._key}", body) or memoryview(b"")
        try:
            found = _PLAINTEXT.search(answer)
            if found is None or len(out) != KEY_BYTES:
                raise RootError(f"The {self._facts.name} did not answer with {len(out)} bytes")
            decode_into(answer[found.start(1) : found.end(1)], out)
        finally:
            self._http.wipe()

    def destroy(self, ref: int) -> str:
        """See :class:`Keeper`: no older version than the next can be used, then none exists."""
        oldest = ref + 1
        if self._read().min_available_version < oldest:
            limits = {"min_decryption_version": oldest, "min_encryption_version": oldest}
            self._call("POST", f"keys/{self._key}/config", limits)
            self._call("POST", f"keys/{self._key}/trim", {"min_available_version": oldest})
        key = self._read()
        if key.min_available_version < oldest or str(ref) in key.keys:
            raise RootError(f"The {self._facts.name} still lists version {ref} after trimming")
        return (
            f"version {ref} of {self._facts.name} trimmed: "
            f"min_available_version {key.min_available_version}, "
            f"min_decryption_version {key.min_decryption_version}"
        )

    def renew(self) -> None:
        """See :class:`Keeper`: every request shows the token anyway."""

    def close(self) -> None:
        """See :class:`Keeper`."""
        self._http.close()

    def _find(self) -> "_Key | None":
        answer = self._call("GET", f"keys/{self._key}", missing_is_none=True)
        return None if answer is None else _decoded(answer, _Key)

    def _read(self) -> "_Key":
        key = self._find()
        if key is None:
            raise RootRevokedError(f"There is no {self._facts.name}")
        return key

    def _require_sound(self, key: "_Key") -> None:
        wrong = [
            what
            for what, bad in (
                (f"its type is {key.type}, not {KEY_TYPE}", key.type != KEY_TYPE),
                ("it is derived (derived=true)", key.derived),
                ("it can be exported", key.exportable),
                ("it allows plaintext backups", key.allow_plaintext_backup),
                ("it was imported: other copies exist", key.imported_key),
                (
                    "it rotates by itself (auto_rotate_period)",
                    key.auto_rotate_period not in (0, "0s"),
                ),
                ("it is deleted (soft delete)", key.soft_deleted),
            )
            if bad
        ]
        if wrong:
            raise RootError(
                f"The {self._facts.name} cannot be a root: {'; '.join(wrong)}",
                hint=f"Make a fresh one: bao write -f {self._mount}/keys/NAME type={KEY_TYPE}",
            )

    @staticmethod
    def _bound(context: bytes) -> dict[str, Any]:
        return {"associated_data": base64.b64encode(context).decode()}

    def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | bytearray | None = None,
        *,
        missing_is_none: bool = False,
    ) -> memoryview | None:
        """One request; once more when it is refused and the token's file holds another token."""
        content = bytearray(msgspec.json.encode(body)) if isinstance(body, dict) else body
        status, answer = self._send(method, path, content)
        if status == 403 and self._renewed_token():
            status, answer = self._send(method, path, content)
        if 200 <= status < 300:
            return answer
        if status == 404 and missing_is_none and not _errors(answer):
            return None
        raise self._failure(status, answer, path)

    def _send(self, method: str, path: str, body: bytearray | None) -> tuple[int, memoryview]:
        try:
            status, answer = self._http.request(
                method, f"/v1/{self._mount}/{path}", self._headers, body
            )
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            raise RootUnavailableError(
                f"The {self._facts.name} cannot be asked: {why[:200]}"
            ) from None
        if len(answer) > MAX_ANSWER_BYTES:
            raise RootError(
                f"The {self._facts.name} answered with more than {MAX_ANSWER_BYTES} bytes"
            )
        return status, answer

    def _renewed_token(self) -> bool:
        token = self._token.read()
        if token == self._headers["X-Vault-Token"]:
            return False
        self._headers["X-Vault-Token"] = token
        return True

    def _failure(self, status: int, answer: memoryview, path: str) -> KeysError:
        said = "; ".join(_errors(answer)) or f"status {status}"
        message = f"The {self._facts.name} refuses {path}: {said[:300]}"
        if "too old" in said or "key not found" in said:
            return EpochGoneError(message)
        if status == 400 and path.startswith("decrypt/"):
            return WrapError(message)
        if status in (400, 403, 404, 405):
            return RootRevokedError(
                message, hint="Check the token's policy, the namespace, the mount and the key."
            )
        hint = "This is a standby: name the active server." if 300 <= status < 400 else None
        return RootUnavailableError(message, hint=hint)


class _Key(msgspec.Struct, frozen=True):
    latest_version: int
    min_decryption_version: int
    keys: dict[str, Any]
    type: str
    min_available_version: int = 0
    derived: bool = False
    exportable: bool = False
    allow_plaintext_backup: bool = False
    imported_key: bool = False
    auto_rotate_period: int | str = 0
    soft_deleted: bool = False


class _Encrypted(msgspec.Struct, frozen=True):
    ciphertext: str


class _Errors(msgspec.Struct, frozen=True):
    errors: list[str] = []


_PLAINTEXT = re.compile(rb'"plaintext":\s*"([A-Za-z0-9+/]{43}=)"')
_Data = TypeVar("_Data", _Key, _Encrypted)


def _decoded(answer: memoryview | None, kind: type[_Data]) -> _Data:
    try:
        wrapped = msgspec.json.decode(answer or b"", type=dict[str, msgspec.Raw])
        return msgspec.json.decode(wrapped["data"], type=kind)
    except (msgspec.MsgspecError, KeyError) as error:
        raise RootError(f"OpenBao answered with something else than expected: {error}") from None


def _errors(answer: memoryview) -> list[str]:
    try:
        return msgspec.json.decode(answer, type=_Errors).errors
    except msgspec.MsgspecError:
        return []
