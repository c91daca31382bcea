"""Where a witness's evidence of one log lies: the log's id as one path component."""

from urllib.parse import quote

from kvrun.control.witness_errors import WitnessUnavailableError

_MAX_BYTES = 200


def log_folder(origin: str) -> str:
    """A folder name for a log's id. Raises WitnessUnavailableError for one that is too long."""
    name = quote(origin, safe="").replace(".", "%2E")
    if len(name) > _MAX_BYTES:
        raise WitnessUnavailableError(f"the log id {origin[:60]}... is too long for a path")
    return name
