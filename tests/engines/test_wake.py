"""An engine with nothing to do is woken for mail at once; a busy one is not asked all the time."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from kvrun.engines.wake import MailWaker
from kvrun.instance.connection import Connection
from kvrun.instance.protocol import Welcome
from support.client import eventually

WELCOME = Welcome(1, "i", "w", "d", False, {}, 0, 1000, 1000)


class Mailbox:
    """Says whether there is mail, waiting for some as long as it is told."""

    def __init__(self) -> None:
        self.there = threading.Event()
        self.looks = 0
        self.woken = 0

    def has_mail(self, wait_s: float) -> bool:
        self.looks += 1
        return self.there.wait(wait_s)

    def wake(self) -> None:
        self.woken += 1


@pytest.fixture
def box() -> Mailbox:
    return Mailbox()


def test_mail_wakes_an_engine_that_sleeps(box: Mailbox) -> None:
    waker = MailWaker(box.has_mail, box.wake)
    time.sleep(0.1)
    assert box.woken == 0
    box.there.set()
    eventually(lambda: box.woken > 0, "it is woken")
    box.there.clear()
    eventually(lambda: not box.there.is_set(), "it is read")
    woken = box.woken
    box.there.set()
    eventually(lambda: box.woken > woken, "it is woken again")
    waker.close()


def test_without_mail_and_beside_a_busy_engine_it_seldom_looks(box: Mailbox) -> None:
    waker = MailWaker(box.has_mail, box.wake)
    time.sleep(1.1)
    assert box.looks <= 8
    box.there.set()
    eventually(lambda: box.woken > 0, "it is woken")
    before = box.woken
    time.sleep(1.5)
    assert box.woken - before <= 10, "the engine computes and leaves its mail"
    waker.close()


def test_the_daemon_sees_an_engine_go_while_that_waits_for_mail() -> None:
    daemon, engine = socket.socketpair()
    with daemon:
        connection = Connection(engine, WELCOME, None)
        waiting = threading.Thread(target=connection.has_mail, args=(5.0,))
        waiting.start()
        time.sleep(0.1)
        connection.close()
        daemon.settimeout(1.0)
        assert daemon.recv(1) == b""
        waiting.join(1.0)
        assert not waiting.is_alive()
