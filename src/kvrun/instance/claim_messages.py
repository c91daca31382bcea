"""Messages about claims: a gateway's key is replaced, a claim goes to an engine that gets it no
other way."""

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


class AnnounceClaims(Message, frozen=True, tag="announce_claims"):
    """Push to gateways: send each claim here too, before its request (``wanted``), or no longer."""

    wanted: bool


class Announced(Message, frozen=True, tag="announced"):
    """A claim that its engine's adapter finds by the request's salt.

    From gateways to the daemon, which passes it on to the schedulers whose hello asked for it.
    ``uses`` is the number of engine requests that it is for.
    """

    salt: str
    claim: str
    uses: int
    traceparent: str = ""


ClaimMessage = RenewClaimKey | ClaimKey | ClaimKeyTaken | AnnounceClaims | Announced
