"""A worker's connection to the daemon together with its staging memory."""

from __future__ import annotations

import logging
import os

from kvrun.errors import KvrunError
from kvrun.instance.connection import Connection, Reconnector
from kvrun.instance.protocol import AnyMessage, Message, Released
from kvrun.instance.staging import SlotTable, StagingRegion

_log = logging.getLogger(__name__)


class WorkerChannel:
    """Messages and slots of one worker.

    When the daemon is lost the staging memory is zeroed and kept aside until a new daemon sends
    its own; until then there is no slot and nothing is stored or loaded.
    """

    def __init__(self, connection: Connection, reconnector: Reconnector) -> None:
        self._reconnector = reconnector
        self._connection: Connection | None = None
        self._region: StagingRegion | None = None
        self._table = SlotTable(0)
        self.slot_bytes = 0
        self.transfer_deadline_s = connection.welcome.transfer_deadline_ms / 1000
        self._adopt(connection)

    @property
    def connected(self) -> bool:
        """Whether the daemon can be reached."""
        return self._connection is not None and not self._connection.closed

    @property
    def hung_up(self) -> bool:
        """Whether the daemon ended the connection: its staging memory may hold anything by now."""
        return self._connection is None or self._connection.hung_up()

    @property
    def slots(self) -> int:
        """All slots of the staging memory."""
        return self._table.capacity

    @property
    def free_slots(self) -> int:
        """Slots that can be taken now."""
        return self._table.free

    @property
    def region(self) -> StagingRegion:
        """The staging memory."""
        assert self._region is not None
        return self._region

    def take(self) -> tuple[int, int] | None:
        """A free slot and its generation."""
        return self._table.take() if self.connected else None

    def generation(self, slot: int) -> int:
        """The generation of a slot in use."""
        return self._table.generation(slot)

    def released(self, message: Released) -> None:
        """Slots that the daemon zeroed are free again."""
        for slot, generation in zip(message.slots, message.generations, strict=False):
            self._table.give_back(slot, generation)

    def send(self, message: Message) -> bool:
        """Queue a message; False when the daemon is gone."""
        return self._connection is not None and self._connection.send(message)

    def poll(self, wait_s: float) -> list[AnyMessage]:
        """What the daemon sent."""
        if self._connection is None:
            return []
        return self._connection.poll(wait_s)

    def recover(self) -> StagingRegion | None:
        """Clear the staging memory of a lost daemon and look for the next one.

        Returns the old region, for the caller to close, once a new daemon's has replaced it.
        """
        if self._connection is not None and self._connection.closed:
            self._connection = None
            self._table = SlotTable(0)
            self.region.zero_all()
        if self._connection is None:
            found = self._reconnector.poll()
            old = self._region
            if found is not None:
                try:
                    self._adopt(found)
                except (KvrunError, OSError, ValueError) as error:
                    # An engine that serves goes on without the cache until another daemon comes.
                    _log.warning("the daemon's staging memory cannot be used: %s", error)
                    found.close()
                return old if self._region is not old else None
        return None

    def lose(self) -> None:
        """Give this daemon up; the next ``recover`` looks for another."""
        if self._connection is not None:
            self._connection.close()

    def close(self) -> None:
        """Close the connection and stop looking for another."""
        self._reconnector.close()
        if self._connection is not None:
            self._connection.close()

    def _adopt(self, connection: Connection) -> None:
        welcome = connection.welcome
        if connection.staging_fd is None:
            connection.close()
            return
        try:
            region = StagingRegion(connection.staging_fd, welcome.slot_bytes, welcome.slots)
        finally:
            os.close(connection.staging_fd)
        self._region = region
        self._table = SlotTable(welcome.slots)
        self._connection = connection
        self.slot_bytes = welcome.slot_bytes
