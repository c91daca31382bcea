"""RFC 3161 timestamps of checkpoints, from a real authority, verified offline."""

import contextlib
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from timestamp_authority import Authority, make_authority, openssl_verifies
from witness_rig import LIMITS, Log, http, liar, read_request, wait_for

from kvrun.audit.errors import TimestampError
from kvrun.audit.timestamp import make_request, verify_token
from kvrun.control.witness import WitnessRefusedError, WitnessUnavailableError
from kvrun.control.witness_timestamp import TimestampWitness

LOG = Log(40)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority") / "one")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority") / "two", "Other")


def witness(
    url: str,
    authority: Authority,
    folder: Path,
    every_s: float = 0,
    now: Callable[[], float] = time.time,
) -> TimestampWitness:
    return TimestampWitness(url, authority.root, folder, every_s=every_s, limits=LIMITS, now=now)


def tokens(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.tsr"))


def test_a_checkpoint_is_timestamped_and_anyone_can_verify_it_offline(
    tmp_path: Path, authority: Authority
) -> None:
    before = int(time.time())
    with authority.serving() as url:
        to = witness(url, authority, tmp_path)
        for size in (10, 40):
            assert to.add_checkpoint(0, [], LOG.note(size)) == b""
    for size, token in zip((10, 40), tokens(tmp_path), strict=True):
        note = token.with_suffix("")
        assert note.name == f"checkpoint-{size:016d}"
        assert note.read_bytes() == LOG.note(size)
        at = verify_token(note.read_bytes(), token.read_bytes(), authority.root)
        assert before <= at <= time.time()
        assert openssl_verifies(authority.folder, note, token)
        assert {path.stat().st_mode & 0o077 for path in (note, token, note.parent)} == {0}


def test_a_token_is_of_its_note_and_its_authority_only(
    tmp_path: Path, authority: Authority, stranger: Authority
) -> None:
    token = authority.reply(make_request(LOG.note()).body)
    assert verify_token(LOG.note(), token, authority.root)
    both = stranger.root + authority.root
    assert verify_token(LOG.note(), token, both)
    with pytest.raises(TimestampError, match="Mismatch between messages"):
        verify_token(LOG.note(39), token, authority.root)
    with pytest.raises(TimestampError, match="does not hold"):
        verify_token(LOG.note(), token, stranger.root)
    with pytest.raises(TimestampError, match="PEM"):
        verify_token(LOG.note(), token, b"no certificate")


def test_a_certificate_that_is_not_for_timestamps_is_not_enough(
    tmp_path: Path, authority: Authority
) -> None:
    """The authority's own root cannot sign timestamps: it lacks the purpose."""
    token = authority.reply(make_request(LOG.note()).body)
    leaf = (authority.folder / "tsa.pem").read_bytes()
    with pytest.raises(TimestampError):
        verify_token(LOG.note(), token, leaf)


def test_no_changed_byte_moves_the_time_or_the_message(authority: Authority) -> None:
    token = authority.reply(make_request(LOG.note()).body)
    at = verify_token(LOG.note(), token, authority.root)
    order = random.Random(1)
    for position in range(len(token)):
        changed = bytearray(token)
        changed[position] ^= 1 << order.randrange(8)
        with contextlib.suppress(TimestampError):
            assert verify_token(LOG.note(), bytes(changed), authority.root) == at


@pytest.mark.parametrize("token", [b"", b"\x30\x03\x02\x01\x02", bytes(70_000), b"x" * 100])
def test_what_is_no_token_is_refused(authority: Authority, token: bytes) -> None:
    with pytest.raises(TimestampError):
        verify_token(LOG.note(), token, authority.root)


def test_an_old_answer_is_not_taken_for_a_new_request(tmp_path: Path, authority: Authority) -> None:
    """Replayed, it is a token of the same note: only the nonce tells them apart."""
    old = authority.reply(make_request(LOG.note()).body)
    replaying = Authority(authority.folder, change=lambda _: old)
    with replaying.serving() as url, pytest.raises(WitnessUnavailableError, match="Nonce"):
        witness(url, authority, tmp_path).add_checkpoint(0, [], LOG.note())
    assert tokens(tmp_path) == []


def test_a_dishonest_or_broken_authority_leaves_no_token(
    tmp_path: Path, authority: Authority, stranger: Authority
) -> None:
    answers: list[Callable[[bytes], bytes]] = [
        lambda request: http(200, stranger.reply(request)),
        lambda request: http(200, authority.reply(make_request(LOG.note(3)).body)),
        lambda request: http(200, authority.reply(b"no request")),
        lambda request: http(500, b""),
        lambda request: http(200, b"<html>"),
        lambda request: http(200, bytes(100_000)),
        lambda request: http(302, b""),
    ]
    for make in answers:
        with (
            liar(
                lambda connection, make=make: connection.sendall(make(read_request(connection)))
            ) as url,  # type: ignore[misc]
            pytest.raises(WitnessUnavailableError),
        ):
            witness(url, authority, tmp_path).add_checkpoint(0, [], LOG.note())
    assert tokens(tmp_path) == []
    with authority.serving() as url:
        witness(url, authority, tmp_path).add_checkpoint(0, [], LOG.note())
    assert len(tokens(tmp_path)) == 1


def test_a_clock_that_is_far_off_is_said(tmp_path: Path, authority: Authority) -> None:
    with authority.serving() as url:
        to = witness(url, authority, tmp_path, now=lambda: time.time() + 3600)
        with pytest.raises(WitnessUnavailableError, match="apart"):
            to.add_checkpoint(0, [], LOG.note())


def test_a_log_is_timestamped_no_more_often_than_asked_for(
    tmp_path: Path, authority: Authority
) -> None:
    clock = [time.time()]
    asked = authority.asked
    with authority.serving() as url:
        for _ in range(2):
            # A second one, as after a restart, goes by what is on the disk.
            to = witness(url, authority, tmp_path, every_s=120, now=lambda: clock[0])
            to.add_checkpoint(0, [], LOG.note(10))
            to.add_checkpoint(10, [], LOG.note(20))
        to.add_checkpoint(0, [], Log(5, origin="kvrun.test/other").note())
        assert authority.asked == asked + 2
        clock[0] += 121
        to.add_checkpoint(10, [], LOG.note(20))
        assert authority.asked == asked + 3
    assert len(tokens(tmp_path)) == 3


def test_another_tree_of_a_timestamped_size_is_refused(
    tmp_path: Path, authority: Authority
) -> None:
    with authority.serving() as url:
        to = witness(url, authority, tmp_path)
        to.add_checkpoint(0, [], LOG.note(20))
        to.add_checkpoint(0, [], LOG.note(20))
        with pytest.raises(WitnessRefusedError, match="forked") as refused:
            to.add_checkpoint(0, [], Log(40, forked_at=3).note(20))
    assert refused.value.evidence == LOG.note(20)


def test_a_token_outlives_the_certificates_it_leads_to(tmp_path: Path) -> None:
    """They must have been valid when it was made, so an archive stays verifiable."""
    lifetime_s = 3.0
    end = time.time() + lifetime_s
    shortlived = make_authority(tmp_path / "tsa", lifetime_s=lifetime_s)
    token = shortlived.reply(make_request(LOG.note()).body)
    wait_for(lambda: time.time() > end + 1)
    assert verify_token(LOG.note(), token, shortlived.root) <= end
    late = shortlived.reply(make_request(LOG.note()).body)
    with pytest.raises(TimestampError, match="does not hold"):
        verify_token(LOG.note(), late, shortlived.root)
