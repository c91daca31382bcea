"""``kvrun erase``: destroy keys, and with them everything they sealed, and certify it."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from kvrun.cli.options import (
    DEFAULT_CONFIG,
    AsJson,
    ConfigFile,
    console,
    print_json,
    read_config,
    table,
)
from kvrun.cli.plan_shown import show_plan
from kvrun.config import KvrunConfig
from kvrun.durable import write_private_file
from kvrun.erasure.archive import CertificateArchive
from kvrun.erasure.certificate import ErasureStatement
from kvrun.erasure.errors import ErasureError
from kvrun.erasure.job import Job, JobState, JobStore
from kvrun.erasure.joint_request import JointRequest
from kvrun.erasure.view import class_of
from kvrun.instance.erasures import ErasureResult
from kvrun.instance.parts import certificates_folder
from kvrun.launch.erasing import erase as erase_one
from kvrun.launch.erasing import plan_erasure, requester
from kvrun.launch.joint_erasures import open_requests

app = typer.Typer(no_args_is_help=True)

Tenant = Annotated[str, typer.Option(help="The tenant's id, as in X-KV-Tenant.")]
PlanOnly = Annotated[
    bool, typer.Option("--plan", help="Count what it would reach, erase nothing, print the token.")
]
Confirm = Annotated[str, typer.Option(metavar="TOKEN", help="The token of the plan.")]
Ask = Annotated[
    bool, typer.Option("--ask", help="Ask a second person to agree to the plan of --confirm.")
]
CertifyPending = Annotated[
    bool,
    typer.Option(
        "--certify-pending", help="Certify although a deployment fails; it is listed as pending."
    ),
]
Reference = Annotated[
    str, typer.Option("--ref", help="Your reference, such as DSAR-123; certificates keep it.")
]
LegalBasis = Annotated[str, typer.Option(help="Why, such as 'GDPR Art. 17'.")]
OpeningFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write the opening there: it proves whom the certificate is about. By default"
        " <id>.opening.json here.",
    ),
]


@app.callback()
def erase() -> None:
    """Destroy keys, so that what they sealed can never be opened again, and certify it.

    A session is erased at once; anything wider wants the token that --plan prints.
    """


@app.command()
def session(
    tenant: Tenant = "default",
    session: Annotated[str, typer.Option(help="The session's id, as in X-KV-Session.")] = "default",
    plan: PlanOnly = False,
    reference: Reference = "",
    legal_basis: LegalBasis = "",
    opening: OpeningFile = None,
    config_file: ConfigFile = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Erase one session: its key is destroyed, its blocks are dropped from every tier.

    The same text sent again starts cold under a new key. Prints where the certificate is.

    Example: kvrun erase session --tenant alice --session chat-7 --ref DSAR-123
    """
    asked = {"kind": "session", "tenant": tenant, "session": session}
    _run(config_file, asked, plan, "", reference, legal_basis, opening, as_json)


@app.command()
def tenant(
    tenant: Tenant,
    plan: PlanOnly = False,
    confirm: Confirm = "",
    reference: Reference = "",
    legal_basis: LegalBasis = "",
    opening: OpeningFile = None,
    config_file: ConfigFile = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Erase every session of a tenant, and the tenant's own key.

    Example: kvrun erase tenant --tenant alice --plan
    """
    asked = {"kind": "tenant", "tenant": tenant}
    _run(config_file, asked, plan, confirm, reference, legal_basis, opening, as_json)


@app.command()
def deployment(
    plan: PlanOnly = False,
    confirm: Confirm = "",
    reference: Reference = "",
    legal_basis: LegalBasis = "",
    opening: OpeningFile = None,
    config_file: ConfigFile = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Erase every tenant and session of the deployment. It goes on serving, cold.

    Example: kvrun erase deployment --plan
    """
    _run(
        config_file, {"kind": "deployment"}, plan, confirm, reference, legal_basis, opening, as_json
    )


@app.command()
def status(
    erasure_id: Annotated[str, typer.Argument(metavar="ID", help="The erasure's id.")],
    config_file: ConfigFile = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Show how far an erasure has come. Ends with status 0 once it is certified, else 1.

    Example: kvrun erase status 5f0c1d7e9a3b2c4d6e8f0a1b
    """
    config = read_config(config_file)
    job = _jobs(config).load(erasure_id)
    archive = CertificateArchive(certificates_folder(config))
    path = archive.path(erasure_id)
    if job is None and not path.exists():
        raise ErasureError(
            f"no erasure {erasure_id!r} is known in {config.instance.data_dir}",
            hint="kvrun erase list shows those that are",
        )
    certified = job is None or job.state is JobState.CERTIFIED
    shown = {
        "id": erasure_id,
        "state": job.state.value if job is not None else JobState.CERTIFIED.value,
        "certificate": str(path) if certified else "",
        "addenda": [str(archive.path(f"{erasure_id}-{n + 1}")) for n in range(job.addenda)]
        if job is not None
        else [],
        "unacknowledged": job.unconfirmed if job is not None else [],
        "steps": msgspec.to_builtins(job.steps) if job is not None else [],
    }
    if as_json:
        print_json(shown)
    else:
        out = console()
        rows = table("what", "value")
        for name in ("id", "state", "certificate", "addenda", "unacknowledged"):
            value = shown[name]
            text = "\n".join(value) if isinstance(value, list) else str(value)
            rows.add_row(name, text)
        for step in job.steps if job is not None else []:
            rows.add_row(step.name, step.at)
        out.print(rows)
    raise typer.Exit(0 if certified else 1)


@app.command("list")
def list_command(
    reference: Annotated[str, typer.Option("--ref", help="Only those with this reference.")] = "",
    config_file: ConfigFile = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """List the deployment's certificates, and erasures that are not certified yet.

    Example: kvrun erase list --ref DSAR-123
    """
    config = read_config(config_file)
    archive = CertificateArchive(certificates_folder(config))
    found = [_row(statement, archive) for statement in archive.statements()]
    jobs = [job for job in _jobs(config).jobs() if job.state is not JobState.CERTIFIED]
    found += [_open_row(job) for job in jobs]
    found += [_request_row(request) for request in open_requests(config)]
    if reference:
        found = [row for row in found if row["reference"] == reference]
    if as_json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print("no erasure" + (f" with the reference {reference}" if reference else ""))
        return
    rows = table("id", "kind", "when", "reference", "class", "keys")
    for row in found:
        when = row["issued_at"][:19] or row["state"]
        rows.add_row(row["id"], row["kind"], when, row["reference"], row["class"], row["keys"])
    out.print(rows)


def print_result(done: ErasureResult, opening: Path | None) -> None:
    """An erasure for people."""
    out = console()
    if not done.erased:
        out.print("nothing to erase: no key exists")
    else:
        rows = table("session (reference in the log)", "generation", "memory blocks", "disk blocks")
        for item in done.erased[:20]:
            rows.add_row(
                item.session_ref,
                str(item.generation),
                str(item.memory_blocks),
                str(item.disk_blocks),
            )
        out.print(rows)
        count = len(done.erased) + done.more
        rest = count - 20
        out.print(f"{count} session key(s) destroyed" + (", 20 shown" * (rest > 0)))
        if done.claim_class == "logical":
            out.print(
                "The key root may keep destroyed keys (kvrun doctor says why): this is a key"
                " deletion record, no certificate of erasure."
            )
    for name in done.unacknowledged:
        out.print(Text.assemble(("not confirmed:", "yellow"), f" {name}"))
    print_places(done.certificate, opening)


def print_places(certificate: str, opening: Path | None) -> None:
    """Where the certificate is; a path is never wrapped."""
    typer.echo(f"certificate: {certificate}")
    if opening is not None:
        typer.echo(f"opening, kept nowhere else: {opening}")


def write_opening(text: str, path: Path) -> Path:
    """Write an opening (0600) durably; one that is there already is left.

    Raises ErasureError where another file exists or it cannot be written.
    """
    try:
        if path.exists() and path.read_text(encoding="utf-8") == text:
            return path
        write_private_file(path, text.encode())
    except (OSError, ValueError) as error:
        typer.echo(text)
        raise ErasureError(
            f"the opening cannot be written to {path}: {error}; it was printed instead",
            hint="The erasure is done and certified. Keep the printed line: it is kept nowhere.",
        ) from error
    return path


def _run(
    config_file: Path,
    asked: dict[str, str],
    plan: bool,
    confirm: str,
    reference: str,
    legal_basis: str,
    opening: Path | None,
    as_json: bool,
) -> None:
    config = read_config(config_file)
    if plan:
        counted = plan_erasure(config, asked, offline=False)
        if as_json:
            print_json(counted)
        else:
            named = (pair for pair in asked.items() if pair[0] != "kind")
            scope = (part for name, value in named for part in (f"--{name}", value))
            show_plan([counted], ["erase", asked["kind"], *scope], counted.token)
        return
    wanted = {
        **asked,
        "confirm": confirm,
        "requester": requester(),
        "reference": reference,
        "legal_basis": legal_basis,
    }
    done = erase_one(config, wanted, offline=False)
    if as_json:
        print_json({"asked": asked, **msgspec.to_builtins(done)})
        return
    place = write_opening(done.opening, opening or Path(f"{done.id}.opening.json"))
    print_result(done, place)


def _jobs(config: KvrunConfig) -> JobStore:
    return JobStore(config.layout.erasure / "jobs")


def _row(statement: ErasureStatement, archive: CertificateArchive) -> dict[str, str]:
    return {
        "id": statement.id,
        "state": JobState.CERTIFIED.value,
        "kind": statement.request.kind.value,
        "issued_at": statement.issued_at,
        "reference": statement.request.reference,
        "class": class_of(statement),
        "keys": str(len(statement.keys)),
        "certificate": str(archive.path(statement.id)),
    }


def _open_row(job: Job) -> dict[str, str]:
    return {
        "id": job.id,
        "state": job.state.value,
        "kind": job.kind.value,
        "issued_at": "",
        "reference": job.reference,
        "class": "",
        "keys": str(len(job.keys)),
        "certificate": "",
    }


def _request_row(request: JointRequest) -> dict[str, str]:
    """A request over several deployments that has to be asked again."""
    return {
        "id": request.id,
        "state": "open",
        "kind": request.kind.value,
        "issued_at": "",
        "reference": request.reference,
        "class": "",
        "keys": "",
        "certificate": "",
    }
