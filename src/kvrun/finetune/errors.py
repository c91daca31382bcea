"""Errors of fine-tunes and of their evaluations."""

from kvrun.errors import KvrunError


class FineTuneError(KvrunError):
    """A fine-tune cannot be made, found or changed as asked."""

    exit_code = 2
    status = 400


class FineTuneMissingError(FineTuneError):
    """There is no fine-tune of that name."""

    status = 404


class FineTuneTakenError(FineTuneError):
    """There is a fine-tune or a job of that name already."""

    status = 409


class FineTuneBusyError(FineTuneError):
    """Another process works on it."""

    exit_code = 3
    status = 409


class FineTuneCancelledError(FineTuneError):
    """The job was told to stop; its checkpoint stays."""

    exit_code = 130


class ToolsMissingError(FineTuneError):
    """What a job needs is not installed."""

    exit_code = 3
    status = 409


class EvaluationError(KvrunError):
    """A model may not be served: its evaluation is missing or does not hold."""

    exit_code = 1
    status = 409
