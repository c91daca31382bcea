"""Claims on their way from gateways to schedulers whose requests carry none."""

from __future__ import annotations

from collections.abc import Callable

from kvrun.instance.claim_messages import AnnounceClaims, Announced
from kvrun.instance.peer import Peer
from kvrun.instance.protocol import Hello, Role


class Announcing:
    """Who wants claims announced. ``tell_gateways`` sends a message to each gateway."""

    def __init__(self, tell_gateways: Callable[[AnnounceClaims], None]) -> None:
        self._tell_gateways = tell_gateways
        self._wanting: set[Peer] = set()

    def connected(self, peer: Peer, hello: Hello) -> None:
        """A process was welcomed."""
        if hello.role is Role.GATEWAY and self._wanting:
            peer.send(AnnounceClaims(True))
        elif hello.role is Role.SCHEDULER and hello.announced:
            self._wanting.add(peer)
            self._tell_gateways(AnnounceClaims(True))

    def disconnected(self, peer: Peer) -> None:
        """A process is gone."""
        if peer in self._wanting:
            self._wanting.discard(peer)
            self._tell_gateways(AnnounceClaims(bool(self._wanting)))

    def forward(self, message: Announced) -> None:
        """A gateway announced a claim."""
        for peer in list(self._wanting):
            peer.send(message)
