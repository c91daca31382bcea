"""Which audit log the commands under ``kvrun audit`` read."""

from pathlib import Path
from typing import Annotated

import typer

from kvrun.audit.errors import AuditError
from kvrun.cli.options import read_config
from kvrun.config.layout import DataLayout

LogFolder = Annotated[
    Path | None,
    typer.Option("--folder", help="The log's folder; by default the one of the configuration."),
]


def log_folder(folder: Path | None, config_file: Path) -> Path:
    """The folder given, else the configured instance's. Raises AuditError when it is not there."""
    log = folder or DataLayout(read_config(config_file).instance.data_dir).audit
    if not log.is_dir():
        raise AuditError(f"there is no audit log in {log}")
    return log
