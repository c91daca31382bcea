"""A daemon as a key service sees it: its connection, and what it was lent."""

import logging
import threading

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from kvrun.claims.claim import key_id_of
from kvrun.keys.key_holders import Holder
from kvrun.keys.stream import PeerProcess, Stream, StreamClosedError
from kvrun.keys.wire import End, Hello, Message

_NAME_CHARS = 200
_log = logging.getLogger(__name__)


class DaemonConnection:
    """One connection. ``lending`` orders keys that are sent and their end; ``leasing`` leases and
    theirs, so that no lease waits for a key that waits for others' destruction.

    Its name is what it says, the instance key that it has shown, and its process.
    """

    def __init__(self, stream: Stream, process: PeerProcess, hello: Hello) -> None:
        self.stream = stream
        self.lending = threading.Lock()
        self.leasing = threading.Lock()
        key_id = key_id_of(Ed25519PublicKey.from_public_bytes(hello.instance))
        name = "".join(c if c.isprintable() else "?" for c in hello.name[:_NAME_CHARS])
        self.holder = Holder(
            f"{name}, instance key {key_id} (process {process.pid})",
            process.pid,
            self._tell,
            lambda: process.ended,
            seen=process.seen,
        )

    def say(self, message: Message) -> bool:
        """Send what needs no answer, or is one; False where the daemon is gone."""
        try:
            self.stream.send(message)
        except StreamClosedError:
            _log.info("%s was not reached", self.holder.name)
            return False
        return True

    def _tell(self, number: int, key_ids: list[bytes], owners: list[bytes]) -> bool:
        with self.lending:
            return self.say(End(number, key_ids, owners))
