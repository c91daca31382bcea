"""Which policies a command means: a folder, a commit, or what is active."""

import time
from pathlib import Path
from typing import Annotated

import typer

from kvrun.cli.options import read_config
from kvrun.config import KvrunConfig, parse_config
from kvrun.git import Git, GitAccess
from kvrun.policy.compare import NamedRevision
from kvrun.policy.document import parse_duration
from kvrun.policy.errors import PolicyError
from kvrun.policy.matching import Tenant
from kvrun.policy.named import ACTIVE, active_revision, read_named
from kvrun.policy.revision import Revision, parse_revision
from kvrun.policy.setup import folder_of
from kvrun.policy.sync import read_folder

_TIMEOUT_S = 30.0

PolicyPath = Annotated[
    Path, typer.Argument(metavar="PATH", help="Folder with policies, or one file.")
]
InRepository = Annotated[
    Path | None,
    typer.Option(
        "--repository", help="Git repository of the revisions; by default the fetched one, or here."
    ),
]
InFolder = Annotated[str, typer.Option("--path", help="Folder of the policies in a repository.")]
ClassOption = Annotated[str, typer.Option("--class", help="Class of a tenant.")]
RegionOption = Annotated[str, typer.Option("--tenant-region", help="Region of a tenant.")]
LabelOption = Annotated[
    list[str] | None, typer.Option("--label", help="KEY=VALUE of a tenant; repeatable.")
]


def config_or_default(config_file: Path) -> KvrunConfig:
    """The configuration, or the defaults where there is no file: policies live elsewhere too."""
    if config_file.exists():
        return read_config(config_file)
    return parse_config("", {}, source=config_file)


def revision_in(path: Path) -> Revision:
    """The revision in a folder that somebody works in. Raises PolicyError."""
    return parse_revision(read_folder(path), "here", time.thread_time)


def meant(name: str, config: KvrunConfig, repository: Path | None, folder: str) -> NamedRevision:
    """What ``name`` means: ``active``, an existing folder, else a commit, branch or tag.

    Raises PolicyError, GitError.
    """
    if name == ACTIVE:
        return active_revision(config)
    if "/" in name or name == ".":
        path = Path(name)
        if path.exists():
            texts = {name: _text(data) for name, data in read_folder(path).items()}
            return NamedRevision(revision_in(path), texts)
    kept = folder_of(config).repository
    place = repository or (kept if kept.exists() and not Path(".git").exists() else Path())
    git = Git.open(place, GitAccess(_TIMEOUT_S), make=False)
    commit = None if name.startswith("-") else git.resolve(name)
    if commit is None:
        raise PolicyError(
            f"{place.absolute()} knows no revision {name!r}",
            hint=f"Name a commit, a branch, a tag, a folder (./policies) or {ACTIVE!r}.",
        )
    return read_named(git, commit, folder)


def seconds_of(text: str) -> int:
    """A length of time from the command line. Raises PolicyError."""
    try:
        return parse_duration(text)
    except ValueError:
        raise PolicyError(
            f"{text[:40]!r} is no length of time", hint="Write 30m, 24h or 7d."
        ) from None


def tenant_from(tenant_class: str, region: str, labels: list[str] | None) -> Tenant:
    """A tenant with attributes from the command line. Raises PolicyError."""
    found = {}
    for label in labels or []:
        key, equals, value = label.partition("=")
        if not key or not equals:
            raise PolicyError(f"{label!r} is no label", hint="Write --label KEY=VALUE.")
        found[key] = value
    return Tenant(tenant_class, region, tuple(sorted(found.items())))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
