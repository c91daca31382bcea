"""Keys in a token behind PKCS#11: a hardware security module, or SoftHSM.

Each epoch's key is an AES-256 object that the token made, that cannot be extracted or copied, and
that C_DestroyObject ends. PKCS #11 Specification Version 3.1 (OASIS).
"""

import contextlib
import os
import ssl
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pkcs11
from pkcs11.constants import Attribute, MechanismFlag, ObjectClass, SlotFlag
from pkcs11.mechanisms import GCMParams, KeyType, Mechanism

from kvrun.keys.errors import (
    EpochGoneError,
    RootError,
    RootRevokedError,
    RootUnavailableError,
    WrapError,
)
from kvrun.keys.filesystem import ClaimClass
from kvrun.keys.keeper import KeeperFacts
from kvrun.keys.secret_source import SecretSource
from kvrun.keys.wrap import NONCE_BYTES, OVERHEAD_BYTES


class Pkcs11Keeper:
    """AES objects in one token; see :class:`kvrun.keys.keeper.Keeper`.

    ``module``: the PKCS#11 library; a process can load one only. ``key`` labels the objects, whose
    CKA_ID is the root's id (16 bytes) and the key's number (8 bytes). Connects at once.
    """

    def __init__(self, *, module: Path, token: str, key: str, pin: SecretSource) -> None:
        self._module, self._token, self._key = module, token, key
        self._pin = pin
        self._root_id = b""
        self._session: Any = None
        self._refused_pin: str | None = None
        self._name = f"token {token!r}"
        try:
            with _own_openssl_errors():
                self._lib = pkcs11.lib(str(module))
        except _errors.PKCS11Error as error:
            if type(error) is not _errors.PKCS11Error:  # loaded, but not ready
                raise RootUnavailableError(
                    f"The PKCS#11 module {module} does not start: {_words(error)}"
                ) from None
            raise RootError(
                f"The PKCS#11 module {module} cannot be loaded: {_words(error)}",
                hint="Name the library of the token's maker, such as "
                "/usr/lib/softhsm/libsofthsm2.so.",
            ) from None
        self._facts = self._do(lambda session: self._describe(session.token))
        self._name = self._facts.name

    @property
    def facts(self) -> KeeperFacts:
        """See :class:`Keeper`."""
        return self._facts

    def greet(self) -> None:
        """See :class:`Keeper`: connecting was all."""

    def bind(self, root_id: bytes, *, fresh: bool) -> None:
        """See :class:`Keeper`: the objects' ids begin with the root's id."""
        self._root_id = root_id

    def new_key(self, after: int) -> int:
        """See :class:`Keeper`: the token makes an AES object."""

        def make(session: Any) -> int:
            ref = after + 1
            for leftover in self._objects(session, ref):
                leftover.destroy()  # of a crash before it was used
            made = session.generate_key(
                KeyType.AES,
                256,
                id=self._object_id(ref),
                label=f"{self._key}/{ref}",
                store=True,
                capabilities=MechanismFlag.ENCRYPT | MechanismFlag.DECRYPT,
                template=_NEVER_LEAVES,
            )
            if made[Attribute.EXTRACTABLE] or not made[Attribute.NEVER_EXTRACTABLE]:
                made.destroy()
                raise RootError(f"The {self._name} makes keys that can be extracted")
            return ref

        return self._do(make)

    def live(self, refs: Collection[int]) -> set[int]:
        """See :class:`Keeper`."""
        return self._do(lambda session: {ref for ref in refs if self._objects(session, ref)})

    def encrypt(self, ref: int, context: bytes, secret: memoryview) -> bytes:
        """See :class:`Keeper`: nonce, ciphertext and tag of AES-GCM inside the token."""
        nonce = os.urandom(NONCE_BYTES)

        def encrypt(session: Any) -> bytes:
            closed: bytes = self._object(session, ref).encrypt(
                bytes(secret),
                mechanism=Mechanism.AES_GCM,
                mechanism_param=GCMParams(nonce, context, 128),
            )
            return nonce + closed

        return self._do(encrypt)

    def decrypt_into(self, ref: int, context: bytes, wrapped: bytes, out: memoryview) -> None:
        """See :class:`Keeper`."""
        if len(wrapped) != len(out) + OVERHEAD_BYTES:
            raise WrapError(f"A wrapped key has {len(wrapped)} bytes, which is not its length")

        def decrypt(session: Any) -> None:
            key = self._object(session, ref)
            try:
                out[:] = key.decrypt(
                    wrapped[NONCE_BYTES:],
                    mechanism=Mechanism.AES_GCM,
                    mechanism_param=GCMParams(wrapped[:NONCE_BYTES], context, 128),
                )
            except _DOES_NOT_OPEN as error:
                # SoftHSM names no reason: the key is asked for something that must work.
                _exercise(key)
                raise WrapError(
                    f"A wrapped key does not open in the {self._name}: {_words(error)}"
                ) from None

        self._do(decrypt)

    def destroy(self, ref: int) -> str:
        """See :class:`Keeper`: C_DestroyObject, then a search that must find nothing."""

        def destroy(session: Any) -> str:
            for found in self._objects(session, ref):
                found.destroy()
            if self._objects(session, ref):
                raise RootError(f"The {self._name} still lists key {ref} after destroying it")
            return (
                f"C_DestroyObject of AES object {self._object_id(ref).hex()} in {self._name}; "
                "a search finds it no more"
            )

        return self._do(destroy)

    def renew(self) -> None:
        """See :class:`Keeper`: log out, so that the PIN must be right again."""
        self._drop()

    def close(self) -> None:
        """See :class:`Keeper`."""
        self._drop()

    def _do(self, action: "Callable[[Any], _Result]") -> "_Result":
        """Run ``action`` in a session; once more in a new one when the old one was lost."""
        for again in (True, False):
            try:
                with _own_openssl_errors():
                    return action(self._connected())
            except _errors.PKCS11Error as error:
                self._drop()
                lost = isinstance(error, _LOST) or type(error) is _errors.PKCS11Error
                if not (again and lost):
                    raise RootUnavailableError(
                        f"The {self._name} does not do its work: {_words(error)}"
                    ) from None
        raise AssertionError("unreachable")

    def _connected(self) -> Any:
        if self._session is not None:
            return self._session
        pin = self._pin.read()
        if pin == self._refused_pin:
            raise RootRevokedError(f"The {self._name} refused this PIN before")
        token = self._find_token()
        try:
            self._session = token.open(rw=True, user_pin=pin)
        except _errors.UserAlreadyLoggedIn:
            # Another session of this process is logged in, and logins are the process's.
            self._session = token.open(rw=True)
        except _PIN as error:
            # Tokens lock after a few wrong PINs: no PIN is tried twice.
            self._refused_pin = pin
            raise RootRevokedError(
                f"The {self._name} refuses the PIN: {_words(error)}",
                hint="Put the right PIN into its file; the same one is not tried again.",
            ) from None
        return self._session

    def _find_token(self) -> Any:
        for again in (True, False):
            try:
                return self._lib.get_token(token_label=self._token)
            except _errors.MultipleTokensReturned:
                raise RootError(f"More than one token is called {self._token!r}") from None
            except _errors.PKCS11Error as error:
                if not again:
                    raise RootUnavailableError(
                        f"{self._module} shows no token {self._token!r}: {_words(error)}"
                    ) from None
            # Some modules look for tokens only when they start.
            if self._lib.initialized:
                self._lib.finalize()
            self._lib.initialize()
        raise AssertionError("unreachable")

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(_errors.PKCS11Error):  # it may be gone already
                session.close()

    def _objects(self, session: Any, ref: int) -> list[Any]:
        wanted = {Attribute.CLASS: ObjectClass.SECRET_KEY, Attribute.ID: self._object_id(ref)}
        return list(session.get_objects(wanted))

    def _object(self, session: Any, ref: int) -> Any:
        found = self._objects(session, ref)
        if not found:
            raise EpochGoneError(f"The {self._name} holds no key {ref} of this root")
        return found[0]

    def _object_id(self, ref: int) -> bytes:
        return self._root_id + ref.to_bytes(8, "big")

    def _describe(self, token: Any) -> KeeperFacts:
        make = f"{token.manufacturer_id.strip()} {token.model.strip()}"
        name = f"token {self._token!r} ({make}, serial {token.serial.decode('ascii', 'replace')})"
        claim, reason = ClaimClass.LOGICAL, f"{make} is not a hardware slot"
        if "softhsm" in make.lower():
            reason = "SoftHSM keeps objects in ordinary files, which it unlinks without overwriting"
        elif token.slot.flags & SlotFlag.HW_SLOT:
            claim = ClaimClass.DEVICE
            reason = f"destroyed inside {make}; a backup or clone of the token would bring it back"
        return KeeperFacts("pkcs11", name, True, claim, reason)


_Result = TypeVar("_Result")
_errors = pkcs11.exceptions
_LOST = (
    _errors.SessionHandleInvalid,
    _errors.SessionClosed,
    _errors.UserNotLoggedIn,
    _errors.DeviceRemoved,
    _errors.DeviceError,
    _errors.TokenNotPresent,
    _errors.ObjectHandleInvalid,
    _errors.KeyHandleInvalid,
    _errors.OperationActive,
)
_PIN = (_errors.PinIncorrect, _errors.PinInvalid, _errors.PinLenRange, _errors.PinLocked)
_DOES_NOT_OPEN = (
    _errors.EncryptedDataInvalid,
    _errors.EncryptedDataLenRange,
    _errors.FunctionFailed,
    _errors.GeneralError,
)
_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_NEVER_LEAVES = {
    Attribute.SENSITIVE: True,
    Attribute.EXTRACTABLE: False,
    Attribute.PRIVATE: True,
    Attribute.COPYABLE: False,
    Attribute.MODIFIABLE: False,
}


@contextlib.contextmanager
def _own_openssl_errors() -> Iterator[None]:
    """Leave no error of a module in this thread's OpenSSL queue.

    SoftHSM shares OpenSSL with Python's ``ssl`` and leaves errors behind, which the next TLS
    connection of the thread would take for its own. A refused cipher list empties the queue.
    """
    try:
        yield
    finally:
        with contextlib.suppress(ssl.SSLError):
            _TLS.set_ciphers("none")


def _exercise(key: Any) -> None:
    params = GCMParams(os.urandom(NONCE_BYTES), b"", 128)
    closed = key.encrypt(bytes(32), mechanism=Mechanism.AES_GCM, mechanism_param=params)
    key.decrypt(closed, mechanism=Mechanism.AES_GCM, mechanism_param=params)


def _words(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
