"""Tallies of stored segments, kept beside what the collector remembers of their logs.

A tally is a saving, never a source: it counts only with the digest of the segment that it was made
from, and one that is missing or damaged is made again from that segment.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path

from kvrun.audit.errors import AuditError
from kvrun.audit.segment import Manifest
from kvrun.audit.tally import Tallier, Tally, encode_tally, parse_tally
from kvrun.control.follow import whole_lines
from kvrun.control.remembered import log_folder
from kvrun.durable import replace_private_file

_PIECE_BYTES = 4 * 2**20
_log = logging.getLogger(__name__)


class Tallies:
    """The tallies in ``folder``, by log, generation and first record."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def note(self, log: str, generation: int, manifest: Manifest, records: Path) -> None:
        """Tally a segment that was just verified. What fails is logged: it can be done later."""
        try:
            self._keep(log, generation, manifest, _pieces(records))
        except (OSError, AuditError) as error:
            _log.warning(
                "the segment %d of %s is not tallied: %s", manifest.before.size, log, error
            )

    def of(
        self, log: str, generation: int, manifest: Manifest, pieces: Iterable[bytes]
    ) -> tuple[Tally, list[bytes]]:
        """A segment's tally and its notable records; from ``pieces`` of it where none is kept.

        Raises AuditError for a segment that is not the manifest's, and what ``pieces`` raises.
        """
        path = self._path(log, generation, manifest.before.size)
        try:
            tally, lines = parse_tally(path.read_bytes())
            if _fits(tally, manifest):
                return tally, lines
        except (OSError, AuditError):
            pass
        return self._keep(log, generation, manifest, pieces)

    def kept(self, log: str, generation: int) -> Iterator[Tally]:
        """The tallies of a log that are there, in order."""
        folder = self._path(log, generation, 0).parent
        for path in sorted(folder.glob("*.tally")) if folder.is_dir() else ():
            try:
                yield parse_tally(path.read_bytes())[0]
            except (OSError, AuditError):
                continue

    def _keep(
        self, log: str, generation: int, manifest: Manifest, pieces: Iterable[bytes]
    ) -> tuple[Tally, list[bytes]]:
        tallier, digest, size = Tallier(), sha256(), 0
        for lines in whole_lines(pieces):
            digest.update(lines)
            size += len(lines)
            tallier.feed(lines)
        tally = Tally(
            counts=tallier.counts,
            decisions=tallier.decisions,
            file_bytes=size,
            first_seq=manifest.before.size,
            log=manifest.log,
            records=tallier.records,
            sha256=digest.hexdigest(),
        )
        if not _fits(tally, manifest):
            raise AuditError(
                f"the segment of {log} from record {manifest.before.size} on is not what its"
                " manifest says",
                hint="Storage may have been tampered with: see `kvrun verify`.",
            )
        path = self._path(log, generation, manifest.before.size)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_private_file(path, encode_tally(tally, tallier.notable))
        return tally, tallier.notable

    def _path(self, log: str, generation: int, first_seq: int) -> Path:
        return self._folder / log_folder(log, generation) / f"{first_seq:016d}.tally"


def _fits(tally: Tally, manifest: Manifest) -> bool:
    return (
        tally.log == manifest.log
        and tally.first_seq == manifest.before.size
        and tally.records == manifest.after.size - manifest.before.size
        and (tally.sha256, tally.file_bytes) == (manifest.sha256, manifest.file_bytes)
    )


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
