"""Why a witness gave no cosignature and kept nothing."""

from kvrun.errors import KvrunError


class WitnessError(KvrunError):
    """A witness did not take a checkpoint."""


class WitnessRefusedError(WitnessError):
    """The witness says that this checkpoint does not continue what it saw of the log.

    ``evidence`` is what it answered or held, often the earlier note. It is the witness's word until
    it holds a note that the log itself signed (check it with the log's key): only then does it
    prove a fork or a rollback to others.
    """

    status = 409

    def __init__(self, message: str, *, evidence: bytes = b"", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.evidence = evidence


class WitnessUnavailableError(WitnessError):
    """The witness was not reached, or its answer cannot be used. It says nothing about the log."""

    status = 503


class WitnessOutOfStepError(WitnessUnavailableError):
    """The witness remembers another size than was assumed, at most the note's.

    It missed checkpoints, or an answer of its was lost. Ask again with a proof from ``size``.
    """

    def __init__(self, message: str, size: int) -> None:
        super().__init__(message)
        self.size = size
