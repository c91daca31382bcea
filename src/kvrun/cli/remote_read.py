"""``kvrun remote``: certificates, audit logs, alerts and Storage through a control plane."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvrun.cli.options import AsJson, console, print_json
from kvrun.cli.remote import (
    DEFAULT_API_URL,
    ApiKeyFile,
    ApiUrl,
    InWorkspace,
    Named,
    connect,
    moment,
    save,
    show,
    the_deployment,
    the_workspace,
)
from kvrun.client.errors import ClientError
from kvrun.config.values import size_text
from kvrun.erasure.view import class_text

Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write it here.")]


def certificates(
    deployment: Annotated[str, typer.Option(help="Only of this one: its id or name.")] = "",
    reference: Annotated[str, typer.Option("--ref", help="Only those with this reference.")] = "",
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """List a workspace's certificates, those of deleted deployments included. None is verified.

    Example: kvrun remote certificates --ref DSAR-123
    """
    with connect(api_url, api_key_file) as client:
        place = the_workspace(client, workspace).id
        bound = the_deployment(client, deployment, workspace).id if deployment else ""
        found = client.certificates.list(place, deployment_id=bound, reference=reference)
        rows = list(found)
    show(
        rows,
        as_json,
        ("id", "deployment", "of", "issued", "reference", "class", "keys"),
        lambda c: (
            c.id,
            c.deployment_id,
            c.kind,
            c.issued_at[:19],
            c.reference,
            class_text(c.claim_class, c.children),
            str(c.keys),
        ),
    )


def certificate(
    deployment: Named,
    certificate_id: Annotated[str, typer.Argument(metavar="ID", help="The certificate's id.")],
    html: Annotated[bool, typer.Option("--html", help="As a page to read, with checks.")] = False,
    pdf: Annotated[bool, typer.Option("--pdf", help="As a PDF file, with checks.")] = False,
    output: Output = None,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Fetch a certificate, as `kvrun verify` takes it; by default into ID.json.

    Example: kvrun remote certificate chat 5f0c1d7e9a3b2c4d6e8f0a1b
    """
    with connect(api_url, api_key_file) as client:
        place = the_deployment(client, deployment, workspace).id
        if pdf:
            data, ending = client.certificates.pdf(place, certificate_id), "pdf"
        elif html:
            data, ending = client.certificates.page(place, certificate_id), "html"
        else:
            data, ending = client.certificates.download(place, certificate_id), "json"
    _write(data, output or Path(f"{certificate_id}.{ending}"))


def trust(
    deployment: Annotated[
        str, typer.Argument(metavar="[DEPLOYMENT]", help="Left out: of the workspace's evidence.")
    ] = "",
    output: Output = None,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Fetch the public keys with which others check certificates, logs or evidence.

    Hand them over on another way than what they are for, and compare fingerprints by voice.

    Example: kvrun remote trust chat -o anchor.json
    """
    with connect(api_url, api_key_file) as client:
        if deployment:
            place = the_deployment(client, deployment, workspace).id
            data = client.certificates.trust_anchor(place)
        else:
            data = client.evidence.trust_anchor(the_workspace(client, workspace).id)
    _write(data, output)


def audit(
    deployment: Named,
    collect: Annotated[
        bool, typer.Option("--collect", help="Collect, verify and store what is new first.")
    ] = False,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the verdict on a deployment's audit log, and its files.

    Ends with status 1 where an alert stopped its collection.

    Example: kvrun remote audit chat --collect
    """
    with connect(api_url, api_key_file) as client:
        found = the_deployment(client, deployment, workspace).id
        done = client.audit.collect(found) if collect else None
        seen = client.audit.show(found)
    if as_json:
        print_json({"collection": done, "log": seen})
    else:
        out = console()
        for item in done.logs if done is not None else []:
            more = f": {item.message}" if item.message else f", {item.new_records} new records"
            out.print(f"{item.log or item.source}: {item.outcome}{more}")
        for finding in done.findings if done is not None else []:
            out.print(f"finding: {finding}")
        for banner in seen.banners:
            out.print(f"{banner.log}: {banner.text}")
        for file in seen.segments:
            typer.echo(f"  {file.name}  {size_text(file.size_bytes)}")
        out.print(seen.produces)
    raise typer.Exit(1 if any(banner.alert for banner in seen.banners) else 0)


def records(
    deployment: Named,
    event: Annotated[str, typer.Option(help="Only this event, such as key_destroyed.")] = "",
    tenant_ref: Annotated[str, typer.Option(help="Only this tenant reference.")] = "",
    request: Annotated[str, typer.Option(help="Only this request id.")] = "",
    log: Annotated[str, typer.Option(help="Which log; the one collected last, unless named.")] = "",
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")] = 100,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show collected records of a deployment's log, newest first. The reading is on record.

    Example: kvrun remote records chat --event key_destroyed
    """
    with connect(api_url, api_key_file) as client:
        found = the_deployment(client, deployment, workspace).id
        asked = client.audit.records(
            found, log=log, event=event, tenant_ref=tenant_ref, request_id=request
        )
        rows = [record for record, _ in zip(asked, range(count), strict=False)]
    show(
        rows,
        as_json,
        ("record", "time", "event", "outcome", "tenant", "blocks", "reason"),
        lambda r: (
            str(r.seq),
            r.ts[:19],
            r.event,
            r.outcome,
            r.tenant_ref[:16] or "-",
            str(r.blocks or "-"),
            r.reason,
        ),
    )


def segment(
    deployment: Named,
    name: Annotated[str, typer.Argument(metavar="FILE", help="As `kvrun remote audit` lists it.")],
    log: Annotated[str, typer.Option(help="Which log; the one collected last, unless named.")] = "",
    output: Output = None,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Fetch a file of a collected log, as the instance wrote and signed it.

    Example: kvrun remote segment chat segment-0000000000000000.jsonl -o segment.jsonl
    """
    with connect(api_url, api_key_file) as client:
        found = the_deployment(client, deployment, workspace).id
        data = client.audit.segment(found, name, log=log)
    _write(data, output)


def alerts(
    every: Annotated[bool, typer.Option("--all", help="Acknowledged ones too.")] = False,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show a workspace's alerts. Ends with status 1 while one waits.

    Example: kvrun remote alerts --workspace acme
    """
    with connect(api_url, api_key_file) as client:
        place = the_workspace(client, workspace).id
        rows = list(client.alerts.list(place, acknowledged=every))
    show(
        rows,
        as_json,
        ("deployment", "log", "what", "raised", "acknowledged", "detail"),
        lambda a: (
            a.deployment_name or "control plane",
            a.log,
            a.kind.replace("_", " "),
            moment(a.raised_at),
            moment(a.acknowledged_at),
            a.detail,
        ),
    )
    raise typer.Exit(1 if any(row.acknowledged_at is None for row in rows) else 0)


def acknowledge(
    log: Annotated[str, typer.Argument(metavar="LOG", help="The log, as alerts show it.")],
    reason: Annotated[str, typer.Option(help="Why it is settled; it is put on record.")],
    deployment: Annotated[str, typer.Option(help="Whose log it is: its id or name.")] = "",
    start_over: Annotated[
        bool, typer.Option("--start-over", help="Collect the log as it is now, as another history.")
    ] = False,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Acknowledge what waits about one log, so that its collection goes on.

    Example: kvrun remote acknowledge acme/d-1/host-7 --deployment chat --reason "disk restored"
    """
    with connect(api_url, api_key_file) as client:
        place = the_workspace(client, workspace).id
        bound = the_deployment(client, deployment, workspace).id if deployment else ""
        done = client.alerts.acknowledge(
            place, log, reason, deployment_id=bound, start_over=start_over
        )
    if as_json:
        print_json(done)
        return
    for item in done:
        typer.echo(f"acknowledged: {item.id}")


def storage(
    prefix: Annotated[
        str, typer.Argument(metavar="[FOLDER]", help="Such as deployments/d-1/audit.")
    ] = "",
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what is in a folder of a workspace's Storage.

    Example: kvrun remote storage deployments
    """
    with connect(api_url, api_key_file) as client:
        place = the_workspace(client, workspace).id
        rows = list(client.storage.browse(place, prefix=prefix))
    show(
        rows,
        as_json,
        ("name", "size", "what it is"),
        lambda e: (
            f"{e.key}/" if e.folder else e.key,
            "-" if e.folder else size_text(e.size_bytes),
            e.note,
        ),
    )


def fetch(
    key: Annotated[str, typer.Argument(metavar="KEY", help="As `kvrun remote storage` shows it.")],
    output: Output = None,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Fetch an object of Storage. A sealed block is ciphertext.

    Example: kvrun remote fetch deployments/d-1/certificates/5f0c1d7e.json -o certificate.json
    """
    with connect(api_url, api_key_file) as client:
        data = client.storage.read(the_workspace(client, workspace).id, key)
    _write(data, output)


def _write(data: bytes, output: Path | None) -> None:
    """To a file, else to standard output. Raises ClientError for what a terminal cannot show."""
    if output is None and sys.stdout.isatty():
        try:
            sys.stdout.write(data.decode("utf-8"))
        except UnicodeDecodeError:
            raise ClientError("this is no text", hint="Name a file with -o.") from None
        return
    if output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return
    save(output, data)
    typer.echo(f"{output} ({len(data):,} bytes)")
