"""What witnesses attest, for ``kvrun verify``: Git repositories and RFC 3161 timestamps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from kvrun.audit.attestation import Attestation
from kvrun.audit.errors import AuditError
from kvrun.audit.files import read_timestamps
from kvrun.audit.verdict import Code
from kvrun.config.witness import WitnessSection

READ_TIMEOUT_S = 300.0
DEFAULT_BRANCH: str = WitnessSection.model_fields["git_branch"].default

Repositories = Annotated[
    list[Path] | None,
    typer.Option("--repository", help="A Git repository that keeps checkpoints. Repeatable."),
]
Branch = Annotated[str, typer.Option(help="The branch of those repositories.")]
Timestamps = Annotated[
    list[Path] | None,
    typer.Option("--timestamp", help="A token (NOTE.tsr beside NOTE) or a folder. Repeatable."),
]
TsaCertificate = Annotated[
    Path | None,
    typer.Option(help="PEM file with the root certificate of the timestamp authority."),
]


def read_attestations(
    repositories: Sequence[Path],
    branch: str,
    timestamps: Sequence[Path],
    tsa_certificate: Path | None,
) -> tuple[Attestation, ...]:
    """Everything that the given witnesses attest. Raises KvrunError for what cannot be read."""
    found = [item for path in repositories for item in _committed(path, branch)]
    if timestamps:
        if tsa_certificate is None:
            raise AuditError(
                "--timestamp needs --tsa-certificate",
                hint="A timestamp counts under the root certificate of an authority you trust.",
            )
        try:
            authorities = tsa_certificate.read_bytes()
        except OSError as error:
            raise AuditError(f"{tsa_certificate} cannot be read: {error.strerror}") from None
        names = f"the timestamp authority of {tsa_certificate.name}"
        found += read_timestamps(timestamps, authorities, names)
    return tuple(found)


def _committed(repository: Path, branch: str) -> list[Attestation]:
    # Loaded where it is used: most verifications have no repository.
    from kvrun.control.witness_git import committed_notes
    from kvrun.git import GitAccess

    notes = committed_notes(repository, branch, GitAccess(READ_TIMEOUT_S))
    return [
        Attestation(item.note, f"the repository {repository}", item.time, Code.COMMITTED)
        for item in notes
    ]
