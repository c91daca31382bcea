"""``kvrun erase user``: one person, in the deployments of a workspace, one certificate over all."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote

import typer

from kvrun.cli.erase import (
    CertifyPending,
    Confirm,
    LegalBasis,
    OpeningFile,
    PlanOnly,
    Reference,
    print_places,
    write_opening,
)
from kvrun.cli.options import DEFAULT_CONFIG, AsJson, console, print_json, read_config, table
from kvrun.cli.plan_shown import show_plan
from kvrun.cli.remote import DEFAULT_API_URL, ApiKeyFile, ApiUrl, connect, the_workspace
from kvrun.cli.remote_erase import erase_person
from kvrun.config import KvrunConfig
from kvrun.erasure.errors import ErasureError
from kvrun.launch.erasing import plan_erasure, requester
from kvrun.launch.joint_erasures import (
    BETWEEN_TOKENS,
    JointAsked,
    JointErased,
    erasing_jointly,
    targets_of,
)
from kvrun.state import DatabaseError


def user(
    user_id: Annotated[str, typer.Argument(metavar="ID", help="The user's id, as in X-KV-Tenant.")],
    workspace: Annotated[str, typer.Option(help="The workspace whose deployments are meant.")],
    reference: Reference = "",
    legal_basis: LegalBasis = "",
    plan: PlanOnly = False,
    confirm: Confirm = "",
    certify_pending: CertifyPending = False,
    opening: OpeningFile = None,
    config_file: Annotated[
        list[Path] | None,
        typer.Option(
            "--config",
            "-c",
            envvar="KVRUN_CONFIG",
            help="Configuration of a deployment. Repeat it.",
        ),
    ] = None,
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Erase one person in every deployment of a workspace, stopped ones included.

    Where configurations are given, or a kvrun.toml is here, it is their deployments. Else, or where
    its API's address or key is given without a configuration, the control plane is asked, which
    knows them all.

    Each deployment gives a certificate, also where it held nothing; one parent certificate lists
    them. Where one fails, or the command is cut short, ask again with the same reference: it goes
    on from there, and there is one parent in the end. A deployment that has Storage in a given
    one's data folder, or is on record in its control plane, but whose configuration was not given,
    is listed as pending, and the command ends with status 1. Others are not seen.

    Example: kvrun erase user alice --workspace acme --ref DSAR-123 --plan
    """
    command = ["erase", "user", user_id, "--workspace", workspace]
    api = ["--api-url", api_url] if api_url != DEFAULT_API_URL else []
    if api_key_file is not None:
        api += ["--api-key-file", str(api_key_file)]
    if not config_file and (api or not DEFAULT_CONFIG.exists()):
        with connect(api_url, api_key_file) as client:
            erase_person(
                client,
                the_workspace(client, workspace).id,
                user_id,
                command=[*command, *api],
                plan=plan,
                confirm=confirm,
                reference=reference,
                legal_basis=legal_basis,
                certify_pending=certify_pending,
                opening=opening,
                as_json=as_json,
            )
        return
    files = config_file or [DEFAULT_CONFIG]
    configs = _deployments(files, workspace)
    unknown, unread = _not_given(configs, files, workspace)
    asked = JointAsked(workspace, user_id, reference, requester(), legal_basis)
    if plan:
        counted = [plan_erasure(config, asked.scope, offline=True) for config in configs]
        token = BETWEEN_TOKENS.join(plan.token for plan in counted)
        if as_json:
            print_json({"deployments": counted, "token": token, "pending": unknown})
        else:
            show_plan(counted, command, token)
            for name, why in unknown.items():
                typer.echo(f"Not reached: {name}: {why}", err=True)
        return
    tokens = confirm.split(BETWEEN_TOKENS) if confirm else [""] * len(configs)
    if len(tokens) != len(configs):
        raise ErasureError(
            f"the token is a plan's over {len(tokens)} deployments, not {len(configs)}",
            hint="Give the same --config options in the same order as with --plan.",
        )
    targets = targets_of(configs, asked, tokens)
    with erasing_jointly(targets, asked, unknown=unknown, certify_pending=certify_pending) as done:
        if as_json:
            print_json(
                {
                    "id": done.parent.id,
                    "certificate": done.parent.certificate,
                    "opening": done.openings[done.parent.id],
                    "openings": done.openings,
                    "children": done.children,
                    "problems": done.problems,
                }
            )
            sys.stdout.flush()
        else:
            _hand_out(done, opening)
    raise typer.Exit(1 if done.problems or unread else 0)


def _hand_out(done: JointErased, opening: Path | None) -> None:
    first = opening or Path(f"{done.parent.id}.opening.json")
    for certificate_id, text in done.openings.items():
        own = first if certificate_id == done.parent.id else None
        write_opening(text, own or first.with_name(f"{certificate_id}.opening.json"))
    rows = table("deployment", "outcome", "certificate")
    for child in done.children:
        why = child.certificate_id or done.problems.get(child.deployment, "")
        rows.add_row(child.deployment, child.outcome.value.replace("_", " "), why)
    console().print(rows)
    print_places(done.parent.certificate, first)
    typer.echo("The other certificates' openings are beside it, by certificate id.")


def _deployments(paths: Sequence[Path], workspace: str) -> list[KvrunConfig]:
    configs = [read_config(path) for path in paths]
    for path, config in zip(paths, configs, strict=True):
        if config.deployment.workspace != workspace:
            raise ErasureError(
                f"{path} is of the workspace {config.deployment.workspace!r}, not {workspace!r}"
            )
    names = [config.deployment.name for config in configs]
    if len(set(names)) < len(names):
        raise ErasureError("two of the configurations name the same deployment")
    return configs


def _not_given(
    configs: Sequence[KvrunConfig], files: Sequence[Path], workspace: str
) -> tuple[dict[str, str], bool]:
    """Why deployments beside those given are not reached, by name; and whether there may be more,
    since a control plane's database could not be read."""
    from kvrun.api.known_deployments import known_beside  # large, and not for other commands

    found = dict.fromkeys(
        _without_configuration(configs, workspace), "its Storage is here, but not its configuration"
    )
    names = {config.deployment.name for config in configs}
    given, unread = {file.resolve() for file in files}, False
    for config in configs:
        try:
            known = known_beside(config, workspace, names, given)
        except DatabaseError as error:
            unread = True
            typer.echo(
                f"Which other deployments the control plane has is not known: {error.message}",
                err=True,
            )
            continue
        for name, shown in known.items():
            found[name] = (
                f"the control plane has it on record as {shown}: ask it, with --api-key-file and "
                "without --config"
            )
    return found, unread


def _without_configuration(configs: Sequence[KvrunConfig], workspace: str) -> list[str]:
    """Deployments whose Storage lies in one of the data folders, and that nobody configured."""
    known = {config.deployment.name for config in configs}
    found: set[str] = set()
    for config in configs:
        above = config.layout.storage(workspace, config.deployment.name).parent
        if above.is_dir():
            found.update(unquote(path.name) for path in above.iterdir() if path.is_dir())
    return sorted(found - known)
