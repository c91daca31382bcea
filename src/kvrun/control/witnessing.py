"""Ask every witness for its cosignature in one round; one that fails costs only its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kvrun.audit.errors import NoteFormatError
from kvrun.audit.note import parse_note
from kvrun.control.collected import CollectedLog, prove
from kvrun.control.remembered import RememberedLog
from kvrun.control.witness import Witness, WitnessError, WitnessRefusedError, ask

COSIGNED = "cosigned"


@dataclass(slots=True)
class WitnessRound:
    """One collection's questions. ``answers`` says of each witness what came of it.

    ``refused`` holds the name, message and evidence of each that saw another history.
    """

    witnesses: Sequence[Witness]
    answers: dict[str, str] = field(default_factory=dict)
    refused: list[tuple[str, str, bytes]] = field(default_factory=list)
    _failed: set[str] = field(default_factory=set)

    def ask(
        self, note: bytes, size: int, collected: CollectedLog, remembered: RememberedLog, tail: Path
    ) -> tuple[bytes, RememberedLog]:
        """The note of ``size`` with the cosignatures that were given, and which sizes were seen."""
        sizes = dict(remembered.witnesses)

        def proof_from(old: int) -> list[bytes]:
            return prove(collected, remembered.stored, tail, old, size)

        for witness in self.witnesses:
            if witness.name in self._failed:
                continue
            try:
                lines = ask(witness, sizes.get(witness.name, 0), note, proof_from)
                parse_note(note + lines)
            except WitnessRefusedError as error:
                self._fail(witness, error.message)
                self.refused.append((witness.name, error.message, error.evidence))
            except (WitnessError, NoteFormatError, ValueError) as error:
                message = error.message if isinstance(error, WitnessError) else str(error)
                self._fail(witness, message)
            else:
                note += lines
                sizes[witness.name] = size
                self.answers[witness.name] = COSIGNED
        return note, msgspec.structs.replace(remembered, witnesses=sizes)

    def _fail(self, witness: Witness, message: str) -> None:
        self._failed.add(witness.name)
        self.answers[witness.name] = message
