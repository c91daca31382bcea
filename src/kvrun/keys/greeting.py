"""How a daemon and a key service show who they are: ``docs/spec/key-service.md``. Pure."""

import hmac
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kvrun.keys.wire import Challenge, Hello
from kvrun.keys.wrap import prefixed

_INSTANCE = b"kvrun/key-service/instance/v3\0"


def hello_proof(token: bytes, challenge: Challenge, hello: Hello) -> bytes:
    """Shows that a daemon has the token, here and now: both nonces are new every time."""
    text = b"kvrun/key-service/hello/v3\0" + _greeting(challenge, hello)
    return hmac.digest(token, text, sha256)


def signed_by(key: Ed25519PrivateKey, challenge: Challenge, hello: Hello) -> bytes:
    """The signature that shows which instance a daemon is, here and now."""
    return key.sign(_INSTANCE + _greeting(challenge, hello))


def is_signed(challenge: Challenge, hello: Hello) -> bool:
    """Whether the daemon has the instance key that it names."""
    try:
        key = Ed25519PublicKey.from_public_bytes(hello.instance)
        key.verify(hello.signature, _INSTANCE + _greeting(challenge, hello))
    except (InvalidSignature, ValueError):
        return False
    return True


def welcome_proof(token: bytes, challenge: Challenge, hello: Hello) -> bytes:
    """Shows that the service has the token."""
    fields = prefixed(challenge.nonce, challenge.service, hello.nonce)
    return hmac.digest(token, b"kvrun/key-service/welcome/v3\0" + fields, sha256)


def _greeting(challenge: Challenge, hello: Hello) -> bytes:
    names = (hello.workspace, hello.deployment, hello.name)
    fields = (challenge.nonce, challenge.service, hello.nonce, *(name.encode() for name in names))
    return prefixed(*fields, hello.instance)
