"""Which rows a run of ``kvrun bench ttft`` prints, and what its daemon does without the cipher."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kvrun.bench.copying_instance import SWITCH, replace_cipher
from kvrun.bench.ttft import _rows, _Times
from kvrun.seal.envelope import OVERHEAD_BYTES, BlockSealer

COLD_S = [1.00, 1.01, 0.99, 1.02, 0.98, 1.00, 1.01]


def times(*, copied: bool = True) -> _Times:
    """Seven rounds: kvrun adds 1 % to a cold prompt, a reload takes 5 % and sealing 2 % of it."""
    governed = [1.01 * each for each in COLD_S]
    reload = [0.05 * each for each in COLD_S]
    return _Times(
        plain=COLD_S,
        plain_again=COLD_S,
        governed=governed,
        reload=reload,
        copied_reload=[each / 1.02 for each in reload] if copied else [],
        disk_reload=[2 * each for each in reload],
    )


def verdicts(measured: _Times) -> dict[str, bool | None]:
    rows = _rows(16_000, measured, random.Random(0), "vLLM")
    return {row.metric.removesuffix(", 16k tokens"): row.met for row in rows if row.goal}


def test_all_three_engines_judge_a_cold_prompt_a_reload_and_the_cipher() -> None:
    assert verdicts(times()) == {
        "cold TTFT, governed": True,
        "reload TTFT, memory tier": True,
        "reload TTFT, sealed": True,
    }


def test_what_was_not_copied_has_no_row() -> None:
    assert "reload TTFT, sealed" not in verdicts(times(copied=False))


def test_a_cipher_that_takes_too_long_is_told() -> None:
    slow = times()
    slow.reload = [1.1 * each for each in slow.copied_reload]
    assert verdicts(slow)["reload TTFT, sealed"] is False


def test_the_daemon_that_copies_opens_what_it_sealed_and_what_it_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in ("seal_into", "open_into"):  # put back afterwards
        monkeypatch.setattr(BlockSealer, method, getattr(BlockSealer, method))
    switch, plaintext = tmp_path / SWITCH, bytes(range(256)) * 16
    replace_cipher(switch)
    sealer = BlockSealer(bytearray(32), generation=1)
    sealed, copied = (bytearray(len(plaintext) + OVERHEAD_BYTES) for _ in range(2))
    sealer.seal_into(b"context", plaintext, sealed, salt=bytes(24))
    switch.touch()
    sealer.seal_into(b"context", plaintext, copied, salt=bytes(24))
    assert plaintext not in sealed
    assert plaintext in copied
    for block in (sealed, copied):
        out = bytearray(len(plaintext))
        sealer.open_into(b"context", block, out)
        assert out == plaintext
