"""``kvrun erase user``: one person, in all given deployments of a workspace, one certificate."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote

import typer

from kvrun.cli.erase import (
    Confirm,
    LegalBasis,
    OpeningFile,
    PlanOnly,
    Reference,
    print_places,
    show_plan,
    write_opening,
)
from kvrun.cli.options import DEFAULT_CONFIG, AsJson, console, print_json, read_config, table
from kvrun.config import KvrunConfig
from kvrun.erasure.certificate import ChildEntry, ChildOutcome
from kvrun.erasure.errors import ErasureError
from kvrun.launch.erasing import certify_parent, plan_erasure, requester
from kvrun.launch.erasing_users import BETWEEN_TOKENS, erase_in_each, sum_plans


def user(
    user_id: Annotated[str, typer.Argument(metavar="ID", help="The user's id, as in X-KV-Tenant.")],
    workspace: Annotated[str, typer.Option(help="The workspace whose deployments are meant.")],
    reference: Reference = "",
    legal_basis: LegalBasis = "",
    plan: PlanOnly = False,
    confirm: Confirm = "",
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
    as_json: AsJson = False,
) -> None:
    """Erase one person in the deployments whose configurations are given, stopped ones included.

    Each deployment gives a certificate, also where it held nothing; one parent certificate lists
    them. A deployment that has Storage in a given one's data folder, but whose configuration was
    not given, is listed as pending, and the command ends with status 1. Others are not seen.

    Example: kvrun erase user alice --workspace acme --ref DSAR-123 -c a/kvrun.toml -c b/kvrun.toml
    """
    configs = _deployments(config_file or [DEFAULT_CONFIG], workspace)
    asked = {"kind": "user", "tenant": user_id}
    if plan:
        counted = [plan_erasure(config, asked, offline=True) for config in configs]
        whole = sum_plans(workspace, counted)
        if as_json:
            print_json({"deployments": counted, "token": whole.token})
        else:
            show_plan(whole, ["user", user_id, f"--workspace {workspace}"])
        return
    tokens = confirm.split(BETWEEN_TOKENS) if confirm else [""] * len(configs)
    if len(tokens) != len(configs):
        raise ErasureError(
            f"the token is a plan's over {len(tokens)} deployments, not {len(configs)}",
            hint="Give the same --config options in the same order as with --plan.",
        )
    wanted = {
        **asked,
        "requester": requester(),
        "reference": reference,
        "legal_basis": legal_basis,
    }
    children, problems = erase_in_each(configs, wanted, tokens)
    for name in _without_configuration(configs, workspace):
        children.append(ChildEntry(deployment=name, outcome=ChildOutcome.PENDING))
        problems[name] = "its Storage is here, but not its configuration"
    if all(child.outcome is ChildOutcome.PENDING for child in children):
        raise ErasureError(
            "nothing was erased: " + "; ".join(f"{k}: {v}" for k, v in problems.items()),
            hint="kvrun erase user ... --plan prints the token to confirm with",
        )
    parent = certify_parent(configs[0], {**wanted, "confirmed": "yes"}, children)
    if as_json:
        print_json(
            {
                "id": parent.id,
                "certificate": parent.certificate,
                "opening": parent.opening,
                "children": children,
                "problems": problems,
            }
        )
    else:
        place = write_opening(parent.opening, opening or Path(f"{parent.id}.opening.json"))
        rows = table("deployment", "outcome", "certificate")
        for child in children:
            why = problems.get(child.deployment, child.certificate_id)
            rows.add_row(child.deployment, child.outcome.value.replace("_", " "), why)
        console().print(rows)
        print_places(parent.certificate, place)
    raise typer.Exit(1 if problems else 0)


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


def _without_configuration(configs: Sequence[KvrunConfig], workspace: str) -> list[str]:
    """Deployments whose Storage lies in one of the data folders, and that nobody configured."""
    known = {config.deployment.name for config in configs}
    found: set[str] = set()
    for config in configs:
        above = config.layout.storage(workspace, config.deployment.name).parent
        if above.is_dir():
            found.update(unquote(path.name) for path in above.iterdir() if path.is_dir())
    return sorted(found - known)
