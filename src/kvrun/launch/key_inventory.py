"""Every key of a deployment that is not a session's: what there is, and how each is replaced."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec

from kvrun.claims.claim import key_id_of
from kvrun.claims.keyfile import load_verification_key
from kvrun.config import DataLayout, KvrunConfig
from kvrun.errors import KvrunError
from kvrun.gateway.apikeys import load_api_keys
from kvrun.gateway.apikeys_file import revoke_api_key, rotate_api_key
from kvrun.instance.claim_keys import ClaimKeyFacts, ClaimKeysRotated
from kvrun.instance.key_access import KeyFacts
from kvrun.keys.signing import KeyPurpose, SigningKey, SigningRing
from kvrun.launch.admin import ask_daemon

HOUR_S = 3600
DAY_S = 24 * HOUR_S


class KeyKind(Enum):
    """The kinds of keys, by the word that commands use."""

    API = "api"
    CLAIM = "claim"
    INSTANCE = "instance"
    CHECKPOINT = "checkpoint"
    CERTIFICATE = "certificate"
    EVIDENCE = "evidence"
    EPOCH = "epoch"
    ROOT = "root"


SIGNING_PURPOSES = {
    KeyKind.INSTANCE: KeyPurpose.INSTANCE,
    KeyKind.CHECKPOINT: KeyPurpose.CHECKPOINT,
    KeyKind.CERTIFICATE: KeyPurpose.CERTIFICATE,
    KeyKind.EVIDENCE: KeyPurpose.EVIDENCE,
}
DEFAULT_OVERLAP_S = {
    KeyKind.API: 7 * DAY_S,
    KeyKind.INSTANCE: DAY_S,
    # A collector that has remembered the earlier key must still recognise the log.
    KeyKind.CHECKPOINT: 90 * DAY_S,
    KeyKind.CERTIFICATE: HOUR_S,
    KeyKind.EVIDENCE: HOUR_S,
}


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One key for listings. Times are whole seconds since 1970; None where nobody knows or set one.

    ``state``: ``in use``, ``verifies`` (earlier signatures only), ``ended``, ``revoked``, or
    ``unknown`` where only a running daemon could say.
    """

    kind: str
    id: str
    state: str
    created_at: int | None = None
    valid_until: int | None = None
    revoked_at: int | None = None
    note: str = ""


class Rotated(msgspec.Struct, frozen=True, kw_only=True):
    """What a rotation made. ``secret`` is an API key's text, shown this once."""

    kind: str
    id: str
    note: str
    secret: str = ""


@dataclass(frozen=True, slots=True)
class KeyInventory:
    """The keys of the deployment that ``config`` describes. ``now`` in seconds since 1970."""

    config: KvrunConfig
    now: Callable[[], float] = time.time

    def entries(self) -> list[KeyEntry]:
        """Every key, newest last within its kind; no file is made."""
        return [*self._api(), *self._claim(), *self._signing(), *self._hierarchy()]

    def rotate(
        self, kind: KeyKind, key_id: str, *, overlap_s: int | None, valid_for_s: int | None
    ) -> Rotated:
        """Put a new key in a key's place. ``key_id`` names an API key; others need none.

        Raises KvrunError.
        """
        if kind is KeyKind.CLAIM:
            return self._rotate_claim(overlap_s)
        if overlap_s is None:
            overlap_s = DEFAULT_OVERLAP_S.get(kind, 0)
        if kind is KeyKind.API:
            record, text = rotate_api_key(
                self._api_file(), key_id, now=int(self.now()), overlap_s=overlap_s
            )
            note = f"key {key_id} is valid for {overlap_s} s more; gateways know within a second"
            return Rotated(kind=kind.value, id=record.id, note=note, secret=text)
        if kind in SIGNING_PURPOSES:
            purpose = SIGNING_PURPOSES[kind]
            made = [
                ring.rotate(purpose, valid_for_s=valid_for_s, overlap_s=overlap_s).key_id
                for ring in self._rings_of(purpose)
            ]
            note = f"earlier keys sign for at most {overlap_s} s more; " + (
                "daemons show the new one from their next start on"
                if kind is KeyKind.INSTANCE
                else "export trust anchors again"
            )
            return Rotated(kind=kind.value, id=", ".join(made), note=note)
        facts = self._ask(f"rotate_{kind.value}")
        if kind is KeyKind.EPOCH:
            return Rotated(kind="epoch", id=str(facts.epoch), note="the epoch before is destroyed")
        return Rotated(kind="root", id=facts.root_id, note="the root key before is destroyed")

    def revoke(self, key_id: str) -> KeyEntry:
        """Revoke a signing key, or end an API key, now. Raises KvrunError."""
        rings = (self._ring(), self._bundle_ring())
        ring = next((ring for ring in rings if ring and key_id in _ids(ring)), None)
        if ring is not None:
            ring.revoke(key_id)
        else:
            revoke_api_key(self._api_file(), key_id, now=int(self.now()))
        return next(entry for entry in self.entries() if entry.id == key_id)

    def _api(self) -> list[KeyEntry]:
        path = self._api_file()
        if not path.exists():
            return []
        now = self.now()
        return [
            KeyEntry(
                kind="api",
                id=record.id,
                state="ended" if record.expires_at is not None and now >= record.expires_at
                else "in use",
                valid_until=record.expires_at,
                note=", ".join(record.scopes) + (f"; tenant {record.tenant}" * bool(record.tenant)),
            )
            for record in load_api_keys(path)
        ]  # fmt: skip

    def _rotate_claim(self, overlap_s: int | None) -> Rotated:
        asked = {} if overlap_s is None else {"overlap_s": str(overlap_s)}
        answer = ask_daemon(self.config, "rotate_claim", asked)
        done = msgspec.json.decode(answer, type=ClaimKeysRotated)
        note = f"claims of earlier keys are believed for {done.overlap_s} s more"
        return Rotated(kind="claim", id=", ".join(done.keys), note=note)

    def _claim(self) -> list[KeyEntry]:
        try:
            found = ask_daemon(self.config, "claim_keys")
        except KvrunError:
            return self._claim_of_launch()
        return [
            KeyEntry(
                kind="claim",
                id=key.id,
                state="in use" if key.until is None else "verifies",
                valid_until=None if key.until is None else int(key.until),
                note="lives as long as the launch",
            )
            for key in msgspec.json.decode(found, type=list[ClaimKeyFacts])
        ]

    def _claim_of_launch(self) -> list[KeyEntry]:
        path = self.config.instance.claim_public_key_file or self.config.layout.claim_public_key
        if not path.exists():
            return []
        return [
            KeyEntry(
                kind="claim",
                id=key_id_of(load_verification_key(path)),
                state="in use",
                created_at=int(path.stat().st_mtime),
                note="lives as long as the launch",
            )
        ]

    def _signing(self) -> list[KeyEntry]:
        ring, bundles = self._ring(), self._bundle_ring()
        own = _entries(ring.all_keys(), self.now()) if ring is not None else []
        if bundles is None:
            return own
        return own + _entries(
            bundles.all_keys(KeyPurpose.EVIDENCE), self.now(), "the control plane's, of bundles"
        )

    def _hierarchy(self) -> list[KeyEntry]:
        try:
            facts = self._ask("keys")
        except KvrunError:
            return [
                KeyEntry(kind=kind, id="-", state="unknown", note="no daemon runs that could say")
                for kind in ("epoch", "root")
            ]
        state = "in use" if facts.lease == "keys may be used" else facts.lease
        return [
            KeyEntry(
                kind="epoch", id=str(facts.epoch), state=state, note=f"{facts.sessions} sessions"
            ),
            KeyEntry(
                kind="root",
                id=facts.root_id,
                state=state,
                note=f"{facts.root_kind}; erasure is {facts.claim}: {facts.root_reason}",
            ),
        ]

    def _ask(self, operation: str) -> KeyFacts:
        return msgspec.json.decode(ask_daemon(self.config, operation), type=KeyFacts)

    def _ring(self) -> SigningRing | None:
        folder = self.config.layout.signing_keys
        return SigningRing(folder, now=self.now) if folder.is_dir() else None

    def _bundle_ring(self) -> SigningRing | None:
        """The ring whose evidence key signs bundles; the deployment's own signs all else."""
        folder = DataLayout(self.config.control_home).control / "signing"
        return SigningRing(folder, now=self.now) if folder.is_dir() else None

    def _rings_of(self, purpose: KeyPurpose) -> list[SigningRing]:
        """Those in which a key of this purpose is in use; the deployment's own where none is."""
        own = SigningRing(self.config.layout.signing_keys, now=self.now)
        if purpose is not KeyPurpose.EVIDENCE:
            return [own]
        rings = [ring for ring in (own, self._bundle_ring()) if ring and ring.all_keys(purpose)]
        return rings or [own]

    def _api_file(self) -> Path:
        return self.config.gateway.api_keys_file or self.config.layout.api_keys


def _ids(ring: SigningRing) -> set[str]:
    return {key.key_id for key in ring.all_keys()}


def _entries(keys: list[SigningKey], now: float, note: str = "") -> list[KeyEntry]:
    newest = {key.purpose: key.key_id for key in keys if key.problem(now) is None}
    return [
        KeyEntry(
            kind=key.purpose.value,
            id=key.key_id,
            state=_state(key, now, newest.get(key.purpose, "")),
            created_at=key.created_at,
            valid_until=key.valid_until,
            revoked_at=key.revoked_at,
            note=note,
        )
        for key in sorted(keys, key=lambda key: (key.purpose.value, key.serial))
    ]


def _state(key: SigningKey, now: float, newest: str) -> str:
    if key.revoked_at is not None:
        return "revoked"
    if key.problem(now) is not None:
        return "ended"
    return "in use" if key.key_id == newest else "verifies"
