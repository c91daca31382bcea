"""``kvrun deployments overview|cache|policy|logs``: what the console shows of a deployment."""

import sys
from typing import Annotated

import typer

from kvrun.cli.options import AsJson, console, print_json, table
from kvrun.cli.remote import (
    DEFAULT_API_URL,
    ApiKeyFile,
    ApiUrl,
    InWorkspace,
    Named,
    connect,
    the_deployment,
)
from kvrun.config.values import size_text


def overview(
    deployment: Named,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show how a deployment does: requests, reuse by tier, time to the first token.

    Example: kvrun deployments overview chat
    """
    with connect(api_url, api_key_file) as client:
        found = client.deployments.overview(the_deployment(client, deployment, workspace).id)
    if as_json:
        print_json(found)
        return
    rows = table("what", "value")
    reuse, first = found.reuse, found.first_byte
    for what, value in (
        ("engine", found.engine),
        ("endpoint", found.endpoint),
        ("requests", "" if found.requests is None else str(found.requests)),
        ("running now", "" if found.running_requests is None else str(found.running_requests)),
        ("prompt tokens", "" if reuse is None else f"{reuse.prompt_tokens:,}"),
        ("reused", "" if reuse is None else f"{reuse.rate:.1%}"),
        *(
            (f"  from {tier}", f"{getattr(reuse, f'{tier}_tokens'):,} tokens")
            for tier in ("gpu", "memory", "disk", "object")
            if reuse is not None
        ),
        (
            "first token",
            f"{first.p50_s:.3f} s median, {first.p90_s:.3f} s 90 of 100" if first else "",
        ),
        *(("warning", text) for text in found.warnings),
    ):
        rows.add_row(what, value or "-")
    console().print(rows)


def cache(
    deployment: Named,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what each tier holds, how it is protected, and why one is off.

    Example: kvrun deployments cache chat
    """
    with connect(api_url, api_key_file) as client:
        found = client.deployments.cache(the_deployment(client, deployment, workspace).id)
    if as_json:
        print_json(found)
        return
    rows = table("tier", "holds", "protection", "size", "blocks", "hit rate")
    for tier in found.tiers:
        size = "-" if tier.size_bytes is None else size_text(tier.size_bytes)
        rows.add_row(
            tier.name,
            tier.off or tier.holds,
            tier.protection,
            size,
            "-" if tier.blocks is None else str(tier.blocks),
            "-" if tier.hit_rate is None else f"{tier.hit_rate:.1%}",
        )
    out = console()
    out.print(rows)
    window = f"{found.context_window:,} tokens" if found.context_window else "not known yet"
    out.print(f"context window: {window}. {found.context_why}")


def policy(
    deployment: Named,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Show the residency policy that a deployment follows and has in force, as JSON.

    Example: kvrun deployments policy chat
    """
    with connect(api_url, api_key_file) as client:
        print_json(client.deployments.policy(the_deployment(client, deployment, workspace).id))


def logs(
    deployment: Named,
    process: Annotated[
        str, typer.Argument(metavar="[PROCESS]", help="up, instance, engine, gateway or collector.")
    ] = "up",
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Print the end of what a process of a deployment printed.

    Example: kvrun deployments logs chat engine
    """
    with connect(api_url, api_key_file) as client:
        found = the_deployment(client, deployment, workspace).id
        sys.stdout.write(client.deployments.process_log(found, process))
