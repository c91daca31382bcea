"""Which certificates a log has on record, and the proof of each."""

from collections.abc import Iterator
from pathlib import Path

from kvrun.audit.cursor import read_records
from kvrun.audit.errors import AuditError
from kvrun.audit.merkle import inclusion_proof, leaf_hash
from kvrun.audit.note import VerifierKey
from kvrun.audit.proof import LogProof
from kvrun.audit.record import Event, Record, as_line
from kvrun.erasure.logproof import LogInclusion


class CertifiedRecords:
    """Those of the log in ``folder``, as far as it was read. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._leaves: list[bytes] = []
        self._found: dict[str, tuple[int, str]] = {}

    def read_on(self) -> Iterator[Record]:
        """Every record since the last time; it counts as read once it was taken.

        Raises AuditError where some are not there: nothing can be proven then.
        """
        for record in read_records(self._folder, from_seq=len(self._leaves)):
            if record.seq != len(self._leaves):
                raise AuditError(
                    f"a proof needs every record of {self._folder} from the first on, and some"
                    " are not there"
                )
            line = as_line(record)
            self._leaves.append(leaf_hash(line.encode()))
            if record.event is Event.CERTIFIED:
                self._found.setdefault(record.digest, (record.seq, line))
            yield record

    def holds(self, digest: str) -> bool:
        """Whether a certificate is on record, by the digest (hex) of its statement."""
        return digest in self._found

    def inclusion(self, digest: str, note: bytes, key: VerifierKey) -> LogInclusion:
        """The proof that it is, under a signed checkpoint over records that were read."""
        seq, line = self._found[digest]
        size = int(note.split(b"\n")[1])
        proof = LogProof(seq, tuple(inclusion_proof(self._leaves[:size], seq)), note)
        return LogInclusion(key=key.text(), proof=proof.encode().decode(), record=line)
