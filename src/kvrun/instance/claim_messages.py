"""The messages by which a gateway's claim key is replaced while it runs."""

from kvrun.instance.message import Message


class RenewClaimKey(Message, frozen=True, tag="renew_claim_key"):
    """Push to gateways: make a new claim key and introduce it, with the same ``call``."""

    call: int


class ClaimKey(Message, frozen=True, tag="claim_key"):
    """Gateway: believe claims of this key from now on, and those of ``replaces`` not for long.

    ``public_key`` is 32 raw bytes; the launch's key with the id ``introduced_by`` signed for it
    (``kvrun.claims.rotating``). ``call`` 0: nobody asked, the gateway's own key is not believed.
    """

    call: int
    public_key: bytes
    introduced_by: str
    signature: bytes
    replaces: tuple[str, ...]


class ClaimKeyTaken(Message, frozen=True, tag="claim_key_taken"):
    """The answer: the key with that id is believed; with ``reason`` it is not."""

    call: int
    key_id: str
    reason: str
