"""Which audit log the commands under ``kvrun audit`` read, and on record that they do."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from kvrun.audit.errors import AuditError, NoteFormatError
from kvrun.audit.reading import LogFolder as ReadFolder
from kvrun.cli.options import read_config
from kvrun.config import KvrunConfig

LogFolder = Annotated[
    Path | None,
    typer.Option("--folder", help="The log's folder; by default the one of the configuration."),
]


def log_folder(folder: Path | None, config_file: Path) -> Path:
    """The folder given, else the configured instance's. Raises AuditError when it is not there."""
    return _existing(folder or read_config(config_file).layout.audit)


def read_log(folder: Path | None, config_file: Path, command: str) -> Path:
    """As ``log_folder``, once the control plane's own log says that ``command`` reads it.

    Where that log cannot be written the log is not read: AuditError. There is none before the first
    collection, and none for a folder that is given where there is no configuration.
    """
    if folder is not None and not config_file.exists():
        return _existing(folder)
    config = read_config(config_file)
    log = _existing(folder or config.layout.audit)
    if config.layout.control_audit.is_dir():
        _put_on_record(config, log, command, deployment="" if folder else config.deployment.name)
    return log


def _put_on_record(config: KvrunConfig, log: Path, command: str, *, deployment: str) -> None:
    # Loads what only the control plane needs.
    from kvrun.control.journal import ControlJournal

    journal = ControlJournal(config.layout, config.deployment.workspace, time.time)
    reason = f"{command} by uid {os.getuid()}"
    try:
        journal.record_read(ReadFolder(log).checkpoint(), reason=reason, deployment=deployment)
    except NoteFormatError:
        # A damaged log can be looked at all the same; which one it calls itself is not known.
        journal.record_read(b"", reason=reason, deployment=deployment)


def _existing(log: Path) -> Path:
    if not log.is_dir():
        raise AuditError(f"there is no audit log in {log}")
    return log
