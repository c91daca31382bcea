"""The choice of a witness at set-up, and what it means to have none."""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import typer
from rich.text import Text

from kvrun.cli.probes import Check, Level
from kvrun.config import ConfigError, KvrunConfig
from kvrun.errors import KvrunError

NONE = "none"
NONE_MEANS = (
    "nobody else remembers this log, so whoever holds this machine and the collected logs "
    "can rewrite both unseen; see docs/witnesses.md"
)
FORMS = (
    "none, https://HOST (a C2SP witness, such as another kvrun), git:FOLDER, git:URL, timestamp:URL"
)


def ask_for_witness() -> tuple[str, Path | None]:
    """What a person at a terminal chooses, and the key file where one is needed."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return NONE, None
    typer.echo(f"Who else remembers the audit log's checkpoints?\n  {FORMS}")
    text = typer.prompt("Witness", default=NONE).strip()
    what = _needed(text)
    return text, Path(typer.prompt(f"File with {what}")) if what else None


def witness_settings(text: str, key_file: Path | None) -> Mapping[str, object]:
    """The settings (dotted keys) for a choice. Raises ConfigError for one that is not known.

    ``key_file``: the verifier key of a C2SP witness, or the root certificate of an authority.
    """
    what = _needed(text)
    if what and key_file is None:
        raise ConfigError(f"--witness {text} needs --witness-key", hint=f"A file with {what}.")
    if not what and key_file is not None:
        raise ConfigError(f"--witness {text} needs no --witness-key", hint=f"allowed: {FORMS}")
    kind, _, rest = text.partition(":")
    key = str(key_file.absolute()) if key_file else ""
    if key_file is not None and not key_file.is_file():
        raise ConfigError(f"--witness-key {key_file} is no file", hint=f"A file with {what}.")
    if text == NONE:
        return {}
    if kind in ("https", "http"):
        return {"witness.urls": [text], "witness.keys_file": key}
    if kind == "timestamp" and rest:
        return {"witness.timestamp_url": rest, "witness.timestamp_ca_file": key}
    if kind == "git" and rest:
        if ":" in rest:
            return {"witness.git_remote": rest}
        return {"witness.git_repository": str(Path(rest).expanduser().absolute())}
    raise ConfigError(f"--witness {text!r} is not known", hint=f"allowed: {FORMS}")


def witness_line(config: KvrunConfig) -> Text:
    """The line for people: amber where there is no witness."""
    names = config.witness.names
    if not names:
        return Text.assemble((f"witness: {NONE}", "yellow"), f" ({NONE_MEANS})")
    return Text("witness: " + ", ".join(names))


def check_witness(config: KvrunConfig) -> Check:
    """The doctor's line: who else remembers the log, and whether what that needs is there."""
    names = config.witness.names
    if not names:
        return Check("witness", Level.WARN, f"{NONE}: {NONE_MEANS}", "set one in [witness]")
    # Loads an HTTP client, which no other command here needs.
    from kvrun.control.witness import open_witnesses

    try:
        open_witnesses(config)
    except KvrunError as error:
        return Check("witness", Level.FAIL, error.message, error.hint or "correct [witness]")
    uses_git = config.witness.git_remote is not None or config.witness.git_repository is not None
    if uses_git and shutil.which("git") is None:
        return Check("witness", Level.FAIL, "git is not installed", "install git")
    return Check("witness", Level.OK, ", ".join(names))


def _needed(text: str) -> str:
    """What the key file of a choice holds; empty where none is needed."""
    if text.startswith(("https:", "http:")):
        return "the witness's verifier key"
    if text.startswith("timestamp:"):
        return "the authority's root certificate (PEM)"
    return ""
