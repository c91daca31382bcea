"""The erasure ledger: which keys were destroyed, for ever, and that each certificate was issued.

It is an audit log of its own, so it is hash-chained, signed and provable like any other, and it
lies beside the key folder, never inside it. A key is entered before it is destroyed. At start
every key of the ledger that exists again, because an older key folder and its root were put back,
is destroyed again. Keys are named by random ids and sessions by pseudonyms that die with them.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from kvrun.audit.checkpoint import CheckpointSigner
from kvrun.audit.record import AuditEvent, Event
from kvrun.audit.settings import AuditLimits
from kvrun.audit.writer import AuditLog
from kvrun.erasure.certified import CertifiedRecords
from kvrun.erasure.job import ErasedKey
from kvrun.erasure.logproof import LogInclusion

# It says when something is erased; that nothing is, the instance's own log says every minute.
_HEARTBEAT_S = 86_400


class ErasureLedger:
    """One deployment's ledger in ``folder``; made by :meth:`open`. Thread-safe."""

    def __init__(self, log: AuditLog, signer: CheckpointSigner) -> None:
        self._log = log
        self._signer = signer
        self._lock = threading.Lock()
        self._certified = CertifiedRecords(log.folder)
        self._keys: set[str] = set()
        self._take_in()

    @classmethod
    def open(
        cls, folder: Path, *, log_id: str, signer: CheckpointSigner, now: Callable[[], float]
    ) -> "ErasureLedger":
        """Open or create it, and read all of it.

        Raises AuditLogDamagedError when records contradict the ledger's own checkpoint: what was
        erased is not certain then, and nothing should be opened.
        """
        limits = AuditLimits(heartbeat_seconds=_HEARTBEAT_S)
        log = AuditLog.open(folder, log_id=log_id, signer=signer, now=now, limits=limits)
        try:
            return cls(log, signer)
        except BaseException:
            log.close()
            raise

    @property
    def log_id(self) -> str:
        """The ledger's name, as certificates give it."""
        return self._log.log_id

    @property
    def destroyed_keys(self) -> frozenset[str]:
        """Ids of every key that was ever entered."""
        with self._lock:
            return frozenset(self._keys)

    def enter(
        self, job_id: str, workspace: str, deployment: str, keys: Sequence[ErasedKey]
    ) -> None:
        """Enter keys that are about to be destroyed; durable when this returns.

        Raises AuditUnavailableError.
        """
        events = [
            AuditEvent(
                event=Event.KEY_DESTROYED,
                request_id=job_id,
                workspace=workspace,
                deployment=deployment,
                tenant_ref=key.tenant_ref,
                session_ref=key.session_ref,
                key_id=key.key_id,
                reason="erasure",
            )
            for key in keys
        ]
        self._log.append_durable(*events)
        with self._lock:
            self._keys.update(key.key_id for key in keys)

    def certified(self, job_id: str, workspace: str, deployment: str, digest: str) -> LogInclusion:
        """Record that a statement was signed, once, and prove that it is recorded.

        Raises AuditUnavailableError.
        """
        with self._lock:
            if not self._certified.holds(digest):
                event = AuditEvent(
                    event=Event.CERTIFIED,
                    request_id=job_id,
                    workspace=workspace,
                    deployment=deployment,
                    digest=digest,
                )
                self._log.append_durable(event)
            note = self._log.sign_checkpoint()
            self._take_in()
            return self._certified.inclusion(digest, note, self._signer.key)

    def close(self) -> None:
        """Let go of the folder."""
        self._log.close()

    def _take_in(self) -> None:
        """Read what was appended since the last time."""
        for record in self._certified.read_on():
            if record.event is Event.KEY_DESTROYED:
                self._keys.add(record.key_id)
