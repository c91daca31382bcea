"""The client asks any C2SP witness; one that lies costs nothing but its own cosignature."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from witness_rig import (
    NOW,
    ORIGIN,
    Log,
    client,
    http,
    liar,
    read_request,
    running_witness,
)

from kvrun.audit.checkpoint import cosign_checkpoint, open_checkpoint
from kvrun.audit.errors import NoteFormatError
from kvrun.audit.note import COSIGNATURE_V1, VerifierKey, parse_note
from kvrun.control.witness import (
    WitnessOutOfStepError,
    WitnessRefusedError,
    WitnessUnavailableError,
    ask,
)
from kvrun.control.witness_request import SIZE_TYPE, parse_request

LOG = Log(40)
OTHER = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
OTHER_KEY = VerifierKey("witness.test/w1", COSIGNATURE_V1, OTHER.public_key().public_bytes_raw())


def cosignature(private_key: Ed25519PrivateKey, note: bytes, time: int = NOW) -> bytes:
    return cosign_checkpoint(note, "witness.test/w1", private_key, time)[len(note) :]


def test_growth_is_cosigned_and_a_fork_is_refused_with_evidence(tmp_path: Path) -> None:
    with running_witness(tmp_path / "w", [LOG.key]) as (url, key):
        witness = client(url, key)
        for old_size, size in ((0, 10), (10, 11), (11, 11), (11, 30)):
            lines = witness.add_checkpoint(old_size, LOG.proof(old_size, size), LOG.note(size))
            opened = open_checkpoint(LOG.note(size) + lines, [LOG.key], [key])
            assert [(who.name, who.time) for who in opened.cosigned_by] == [(key.name, NOW)]
        fork = Log(40, forked_at=20)
        with pytest.raises(WitnessRefusedError, match="forked") as refused:
            witness.add_checkpoint(30, fork.proof(30), fork.note())
        assert open_checkpoint(refused.value.evidence, [LOG.key]).signed_by == (LOG.key,)
        with pytest.raises(WitnessRefusedError, match="another checkpoint"):
            witness.add_checkpoint(30, [], fork.note(30))
        with pytest.raises(WitnessRefusedError, match="rolled back"):
            witness.add_checkpoint(5, LOG.proof(5, 20), LOG.note(20))
        with pytest.raises(WitnessRefusedError):
            witness.add_checkpoint(30, [bytes(32)] * 3, LOG.note())
        assert witness.add_checkpoint(30, LOG.proof(30), LOG.note())


def test_a_witness_that_missed_checkpoints_is_asked_from_where_it_stopped(tmp_path: Path) -> None:
    with running_witness(tmp_path / "w", [LOG.key]) as (url, key):
        witness = client(url, key)
        assert witness.add_checkpoint(0, [], LOG.note(10))
        with pytest.raises(WitnessOutOfStepError) as out_of_step:
            witness.add_checkpoint(25, LOG.proof(25), LOG.note())
        assert out_of_step.value.size == 10
        lines = ask(witness, 25, LOG.note(), LOG.proof)
        assert open_checkpoint(LOG.note() + lines, [], [key]).cosigned_by


def test_an_answer_that_was_lost_is_asked_for_again(tmp_path: Path) -> None:
    with running_witness(tmp_path / "w", [LOG.key]) as (url, key):
        witness = client(url, key)
        assert witness.add_checkpoint(0, [], LOG.note(10))
        assert witness.add_checkpoint(0, [], LOG.note(10))


def test_memory_survives_kill_9_between_signing_and_answering(tmp_path: Path) -> None:
    """What it signed it remembers, so the same is signed again and nothing else ever is."""
    (tmp_path / "log.vkey").write_text(LOG.key.text())
    with running_witness(tmp_path / "w", [LOG.key]) as (url, key):
        assert client(url, key).add_checkpoint(0, [], LOG.note(10))
    script = Path(__file__).with_name("crash_witness.py")
    process = subprocess.Popen(
        [sys.executable, script, tmp_path / "w", tmp_path / "log.vkey"],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path), "PATH": "/usr/bin:/bin"},
    )
    assert process.stdout is not None
    with process.stdout:
        url = process.stdout.readline().strip()
        with pytest.raises(WitnessUnavailableError):
            client(url, key).add_checkpoint(10, LOG.proof(10, 20), LOG.note(20))
        assert process.wait(timeout=30) == -9
    with running_witness(tmp_path / "w", [LOG.key]) as (url, same_key):
        assert same_key == key
        witness = client(url, key)
        fork = Log(40, forked_at=15)
        with pytest.raises(WitnessRefusedError):
            ask(witness, 10, fork.note(20), lambda size: fork.proof(size, 20))
        lines = ask(witness, 10, LOG.note(20), lambda size: LOG.proof(size, 20))
        assert open_checkpoint(LOG.note(20) + lines, [], [key]).cosigned_by


def test_two_installations_are_each_others_witness(tmp_path: Path) -> None:
    ours, theirs = Log(20), Log(30, origin="other.test/instances/one", seed=2)
    with (
        running_witness(tmp_path / "a", [theirs.key], "ours.test") as (our_url, our_key),
        running_witness(tmp_path / "b", [ours.key], "theirs.test") as (their_url, their_key),
    ):
        for log, url, key in ((ours, their_url, their_key), (theirs, our_url, our_key)):
            for size in (5, log.size):
                prove = partial(log.proof, size=size)
                note = log.note(size) + ask(client(url, key), 0, log.note(size), prove)
                opened = open_checkpoint(note, [log.key], [our_key, their_key])
                assert [who.name for who in opened.cosigned_by] == [key.name]
        with pytest.raises(WitnessUnavailableError, match="does not know the log"):
            client(our_url, our_key).add_checkpoint(0, [], ours.note())


def test_the_request_is_what_the_protocol_says_byte_for_byte() -> None:
    seen: list[bytes] = []

    def behave(connection: socket.socket) -> None:
        seen.append(read_request(connection))
        connection.sendall(http(200, cosignature(OTHER, LOG.note())))

    with liar(behave) as url:
        lines = client(url, OTHER_KEY).add_checkpoint(7, LOG.proof(7), LOG.note())
    assert lines == cosignature(OTHER, LOG.note())
    request = parse_request(seen[0])
    assert (request.old_size, list(request.proof)) == (7, LOG.proof(7))
    assert request.note == LOG.note()


def answer(make: Callable[[bytes], bytes]) -> Callable[[socket.socket], None]:
    def behave(connection: socket.socket) -> None:
        connection.sendall(make(read_request(connection)))

    return behave


def hang(connection: socket.socket) -> None:
    read_request(connection)
    connection.recv(1)


def drip(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    connection.settimeout(0.05)
    while True:
        connection.sendall(b"x")
        try:
            if not connection.recv(1):
                return
        except TimeoutError:
            pass


def flood(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 104857600\r\n\r\n")
    for _ in range(1600):
        connection.sendall(bytes(65536))


def endless_head(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for _ in range(1000):
        connection.sendall(b"X-More: " + b"a" * 4096 + b"\r\n")


STRANGER = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
FORK = Log(40, forked_at=3)
LIES = {
    "nothing": lambda connection: None,
    "a signature of a key that is not known": answer(
        lambda _: http(200, cosignature(STRANGER, LOG.note()))
    ),
    "its cosignature of another checkpoint": answer(
        lambda _: http(200, cosignature(OTHER, LOG.note(39)))
    ),
    "its cosignature of another history": answer(
        lambda _: http(200, cosignature(OTHER, FORK.note()))
    ),
    "a time that is not yet": answer(
        lambda _: http(200, cosignature(OTHER, LOG.note(), NOW + 10_000))
    ),
    "a time that never comes": answer(
        lambda _: http(200, cosignature(OTHER, LOG.note(), 2**64 - 1))
    ),
    "the log's own signature": answer(
        lambda _: http(200, LOG.note()[len(parse_note(LOG.note()).text) + 1 :])
    ),
    "an empty body": answer(lambda _: http(200, b"")),
    "garbage": answer(lambda _: http(200, bytes(range(256)))),
    "text": answer(lambda _: http(200, b"<html>sign in</html>\n")),
    "no HTTP": answer(lambda _: bytes(range(256)) * 100),
    "a size that it was told": answer(lambda _: http(409, b"7\n", SIZE_TYPE)),
    "a conflict without a size": answer(lambda _: http(409, b"conflict\n")),
    "a size that is none": answer(lambda _: http(409, b"-1\n", SIZE_TYPE)),
    "a size without end": answer(lambda _: http(409, b"9" * 60_000, SIZE_TYPE)),
    "an error": answer(lambda _: http(500, b"oops")),
    "a bad request": answer(lambda _: http(400, b"\x1b[2Jbad")),
    "that it knows no such log": answer(lambda _: http(404, b"")),
    "a redirect": answer(
        lambda _: b"HTTP/1.1 307 X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    ),
    "a hundred megabytes": flood,
    "a head without end": endless_head,
    "compressed megabytes": answer(
        lambda _: http(200, bytes(60_000)).replace(b"\r\n", b"\r\nContent-Encoding: gzip\r\n", 1)
    ),
}


@pytest.mark.parametrize("behave", LIES.values(), ids=LIES.keys())
def test_a_witness_that_answers_with_a_lie_gives_nothing(
    behave: Callable[[socket.socket], None],
) -> None:
    with liar(behave) as url, pytest.raises(WitnessUnavailableError) as error:
        client(url, OTHER_KEY).add_checkpoint(7, LOG.proof(7), LOG.note())
    assert error.value.message.isprintable()


@pytest.mark.parametrize("behave", [hang, drip], ids=["hangs", "drips"])
def test_a_witness_that_never_ends_its_answer_is_left(
    behave: Callable[[socket.socket], None],
) -> None:
    with liar(behave) as url, pytest.raises(WitnessUnavailableError, match=r"within 0\.5 s"):
        client(url, OTHER_KEY, timeout_s=0.5).add_checkpoint(7, LOG.proof(7), LOG.note())


def test_only_the_valid_lines_of_known_keys_are_taken() -> None:
    good = cosignature(OTHER, LOG.note())
    body = cosignature(STRANGER, LOG.note()) + good + cosignature(OTHER, LOG.note(39))
    with liar(answer(lambda _: http(200, body))) as url:
        assert client(url, OTHER_KEY).add_checkpoint(7, LOG.proof(7), LOG.note()) == good


def test_a_plain_log_key_of_the_witness_counts_for_nothing() -> None:
    plain = VerifierKey(OTHER_KEY.name, 0x01, OTHER_KEY.public_key)
    with (
        liar(answer(lambda _: http(200, cosignature(OTHER, LOG.note())))) as url,
        pytest.raises(WitnessUnavailableError),
    ):
        client(url, plain).add_checkpoint(7, LOG.proof(7), LOG.note())


def test_nobody_there_is_said_by_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(WitnessUnavailableError, match=f"127.0.0.1:{port}"):
        client(f"http://127.0.0.1:{port}", OTHER_KEY).add_checkpoint(0, [], LOG.note())


def test_what_a_refusal_says_names_the_log(tmp_path: Path) -> None:
    with (
        running_witness(tmp_path / "w", [Log(1, seed=9).key]) as (url, key),
        pytest.raises(WitnessRefusedError, match=f"{ORIGIN} under another key"),
    ):
        client(url, key).add_checkpoint(0, [], LOG.note())


def test_a_refusal_that_is_a_lie_proves_nothing_to_others() -> None:
    """Whoever is told of it looks for a note that the log signed, and finds none."""
    forged = FORK.note().replace(LOG.key.name.encode(), b"somebody/else")
    lies = [http(409, b"41\n", SIZE_TYPE), http(422, forged), http(403, b""), http(422, b"x" * 999)]
    for lie in lies:
        with (
            liar(answer(lambda _, lie=lie: lie)) as url,  # type: ignore[misc]
            pytest.raises(WitnessRefusedError) as refused,
        ):
            client(url, OTHER_KEY).add_checkpoint(7, LOG.proof(7), LOG.note())
        with contextlib.suppress(NoteFormatError):
            assert not open_checkpoint(refused.value.evidence, [LOG.key]).signed_by
