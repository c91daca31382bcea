"""Witnesses: other parties that remember a log's checkpoints, so that a fork or a rollback shows.

``open_witnesses`` makes the ones that ``[witness]`` names; ``ask`` puts one checkpoint to one of
them. A witness that fails costs its cosignature and nothing else.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from kvrun.audit.files import read_keys
from kvrun.audit.note import COSIGNATURE_V1, VerifierKey
from kvrun.config import ConfigError, KvrunConfig
from kvrun.control.witness_c2sp import MAX_ANSWER_BYTES, C2spWitness
from kvrun.control.witness_errors import (
    WitnessError,
    WitnessOutOfStepError,
    WitnessRefusedError,
    WitnessUnavailableError,
)
from kvrun.control.witness_git import GitWitness
from kvrun.control.witness_http import HttpLimits
from kvrun.control.witness_timestamp import TimestampWitness
from kvrun.git import GitAccess

__all__ = [
    "Witness",
    "WitnessError",
    "WitnessOutOfStepError",
    "WitnessRefusedError",
    "WitnessUnavailableError",
    "ask",
    "open_witnesses",
]

_ATTEMPTS = 3


class Witness(Protocol):
    """One other party. Calls block, each for at most the configured time: use a thread."""

    @property
    def name(self) -> str:
        """Who it is, for people: an address or a path."""

    def add_checkpoint(self, old_size: int, proof: Sequence[bytes], note: bytes) -> bytes:
        """Have ``note`` (a signed checkpoint) seen and remembered.

        ``proof`` holds the RFC 6962 consistency hashes from ``old_size`` to the note's size. The
        result is the cosignature lines to append to the note, verified, or nothing where the
        witness keeps its evidence elsewhere.

        Raises:
            WitnessRefusedError: it saw another history of this log.
            WitnessOutOfStepError: it remembers another size than ``old_size``.
            WitnessUnavailableError: it gave no answer that can be used.
        """


def open_witnesses(config: KvrunConfig) -> list[Witness]:
    """The witnesses that ``config`` names; none when the list is empty.

    Files that they need are read here. Raises KvrunError for one that cannot be used.
    """
    section = config.witness
    limits = HttpLimits(section.timeout_s, MAX_ANSWER_BYTES, section.tls_ca_file)
    found: list[Witness] = []
    if section.keys_file is not None:
        keys = _witness_keys(section.keys_file)
        found += [C2spWitness(url, keys, limits=limits, now=time.time) for url in section.urls]
    if section.git_repository is not None or section.git_remote is not None:
        access = GitAccess(
            section.timeout_s,
            section.git_ssh_key_file,
            section.git_token_file,
            section.tls_ca_file,
        )
        repository = section.git_repository or config.layout.witness / "repository.git"
        found.append(
            GitWitness(
                repository, branch=section.git_branch, remote=section.git_remote, access=access
            )
        )
    if section.timestamp_url is not None and section.timestamp_ca_file is not None:
        found.append(
            TimestampWitness(
                section.timestamp_url,
                _read(section.timestamp_ca_file, "witness.timestamp_ca_file"),
                config.layout.witness / "timestamps",
                every_s=section.timestamp_every_s,
                limits=limits,
                now=time.time,
            )
        )
    return found


def ask(
    witness: Witness, old_size: int, note: bytes, prove: Callable[[int], Sequence[bytes]]
) -> bytes:
    """``add_checkpoint`` with the proof that the witness needs, from where it stopped.

    ``prove(size)`` makes the consistency proof from ``size`` to the note's size; it is called again
    when the witness remembers another size than ``old_size``. Raises what ``add_checkpoint`` does.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return witness.add_checkpoint(old_size, prove(old_size), note)
        except WitnessOutOfStepError as error:
            old_size = error.size
    return witness.add_checkpoint(old_size, prove(old_size), note)


def _witness_keys(path: Path) -> tuple[VerifierKey, ...]:
    keys = read_keys(path)
    for key in keys:
        if key.algorithm != COSIGNATURE_V1:
            raise ConfigError(
                f"witness.keys_file = {str(path)!r}: {key.name} is a log's key, not a witness's",
                hint="A witness's key has the type 0x04; `kvrun witness key` prints one.",
            )
    return keys


def _read(path: Path, key: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{key} = {str(path)!r} cannot be read: {error.strerror}") from None
