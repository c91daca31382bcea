"""Epoch keys wrapped by a key of AWS KMS, which cannot destroy a single one of them.

One KMS key wraps every epoch key; a KMS key is deleted as a whole, after 7 to 30 days of waiting.
So a destroyed epoch is one whose wrapped copy on disk was overwritten, as with a file root, and
the folder must not be backed up. What KMS adds: whoever steals disk and folder opens nothing, and
disabling the key stops everything. API: docs.aws.amazon.com/kms/latest/APIReference.
"""

from collections.abc import Callable, Collection
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from kvrun.keys.errors import (
    RootError,
    RootRevokedError,
    RootUnavailableError,
    WrapError,
)
from kvrun.keys.filesystem import ClaimClass
from kvrun.keys.keeper import KeeperFacts


class AwsKmsKeeper:
    """One symmetric KMS key; see :class:`kvrun.keys.keeper.Keeper`.

    Credentials come from where the AWS SDK looks for them, never from the configuration.
    """

    def __init__(self, *, arn: str, region: str, timeout_s: float = 5.0) -> None:
        self._arn = arn
        self._facts = KeeperFacts(
            kind="aws_kms",
            name=f"KMS key {arn}",
            destroys=False,
            claim=ClaimClass.LOGICAL,
            reason="KMS destroys no single epoch (a whole key only, after 7 days at least): the "
            "wrapped epoch key on this disk is overwritten instead",
        )
        self._client: Any = boto3.client(
            "kms",
            region_name=region,
            config=Config(
                connect_timeout=timeout_s,
                read_timeout=timeout_s,
                retries={"total_max_attempts": 2, "mode": "standard"},
            ),
        )

    @property
    def facts(self) -> KeeperFacts:
        """See :class:`Keeper`."""
        return self._facts

    def bind(self, root_id: bytes, *, fresh: bool) -> None:
        """See :class:`Keeper`. The encryption context keeps roots apart, so a key may be shared."""
        self.greet()

    def greet(self) -> None:
        """See :class:`Keeper`."""
        found = self._ask(lambda: self._client.describe_key(KeyId=self._arn))["KeyMetadata"]
        if (found.get("KeySpec"), found.get("KeyUsage")) != (
            "SYMMETRIC_DEFAULT",
            "ENCRYPT_DECRYPT",
        ):
            raise RootError(
                f"{self._facts.name} cannot be a root: it is a {found.get('KeySpec')} key for "
                f"{found.get('KeyUsage')}; SYMMETRIC_DEFAULT for ENCRYPT_DECRYPT is allowed"
            )
        if found.get("KeyState") != "Enabled":
            raise RootRevokedError(f"{self._facts.name} is {found.get('KeyState')}, not Enabled")

    def new_key(self, after: int) -> int:
        """See :class:`Keeper`: only the number changes; the KMS key is the same for all."""
        return after + 1

    def live(self, refs: Collection[int]) -> set[int]:
        """See :class:`Keeper`: KMS forgets none."""
        return set(refs)

    def encrypt(self, ref: int, context: bytes, secret: memoryview) -> bytes:
        """See :class:`Keeper`."""
        answer = self._ask(
            lambda: self._client.encrypt(
                KeyId=self._arn, Plaintext=bytes(secret), EncryptionContext=_context(ref, context)
            )
        )
        wrapped: bytes = answer["CiphertextBlob"]
        if len(wrapped) > 430:
            raise RootError(f"{self._facts.name} made a ciphertext of {len(wrapped)} bytes")
        return wrapped

    def decrypt_into(self, ref: int, context: bytes, wrapped: bytes, out: memoryview) -> None:
        """See :class:`Keeper`."""
        answer = self._ask(
            lambda: self._client.decrypt(
                KeyId=self._arn, CiphertextBlob=wrapped, EncryptionContext=_context(ref, context)
            )
        )
        plain: bytes = answer["Plaintext"]
        if len(plain) != len(out):
            raise WrapError(f"A wrapped key has {len(plain)} bytes inside, not {len(out)}")
        out[:] = plain

    def destroy(self, ref: int) -> str:
        """See :class:`Keeper`: nothing happens in KMS, and the words say so."""
        return f"{self._facts.name} lives on"

    def renew(self) -> None:
        """See :class:`Keeper`: every request is signed anew anyway."""

    def close(self) -> None:
        """See :class:`Keeper`."""
        self._client.close()

    def _ask(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            message = f"{self._facts.name}: {error}"
            if code in _DOES_NOT_OPEN:
                raise WrapError(message) from None
            if code in _REFUSED:
                raise RootRevokedError(
                    message, hint="Check the key's state, its policy and the credentials."
                ) from None
            raise RootUnavailableError(message) from None
        except NoCredentialsError as error:
            raise RootError(
                f"{self._facts.name} cannot be asked: {error}",
                hint="Give the daemon an instance profile, or AWS_PROFILE or AWS_ACCESS_KEY_ID.",
            ) from None
        except BotoCoreError as error:
            raise RootUnavailableError(f"{self._facts.name} cannot be asked: {error}") from None


_DOES_NOT_OPEN = {"InvalidCiphertextException", "IncorrectKeyException"}
_REFUSED = {
    "AccessDenied",
    "AccessDeniedException",
    "DisabledException",
    "ExpiredTokenException",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "KMSInvalidStateException",
    "NotFoundException",
    "UnrecognizedClientException",
}


def _context(ref: int, context: bytes) -> dict[str, str]:
    """No secret: AWS logs it. Decrypting asks for the same again."""
    return {"kvrun": context.hex(), "key": str(ref)}
