"""``kvrun deployments rebuild``: a new instance, with another specification where that is named."""

from typing import Annotated

import msgspec
import typer

from kvrun.cli.deployment_options import labels_of, settings_of, size_of
from kvrun.cli.options import AsJson, console, print_json
from kvrun.cli.remote import (
    DEFAULT_API_URL,
    ApiKeyFile,
    ApiUrl,
    InWorkspace,
    Named,
    connect,
    the_deployment,
)
from kvrun.client.results.deployments import DeploymentSpec


def rebuild(
    deployment: Named,
    name: Annotated[str | None, typer.Option(help="Another name.")] = None,
    model: Annotated[str | None, typer.Option(help="Another model.")] = None,
    engine: Annotated[str | None, typer.Option(help='Another engine: "vllm", "llama.cpp".')] = None,
    multi_tenant: Annotated[
        bool | None,
        typer.Option("--multi-tenant/--single-tenant", help="Whether requests name their user."),
    ] = None,
    stateless: Annotated[
        bool | None,
        typer.Option("--stateless/--keep-context", help="Whether nothing is kept after a request."),
    ] = None,
    context_window: Annotated[int | None, typer.Option(min=16, help="Tokens.")] = None,
    memory: Annotated[str | None, typer.Option(help='Memory tier, such as "8GiB".')] = None,
    disk: Annotated[str | None, typer.Option(help='Disk tier, such as "100GiB".')] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A label, in place of all of now. Repeatable."),
    ] = None,
    gpu: Annotated[
        list[int] | None, typer.Option(help="A GPU, in place of all of now. Repeatable.")
    ] = None,
    allow_shared_gpu: Annotated[
        bool | None,
        typer.Option("--allow-shared-gpu/--own-gpus", help="Whether others may be on them."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A further setting. Repeatable."),
    ] = None,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Replace a deployment's instance by a new one, warm from what is stored.

    What is named changes with it, the rest of the specification stays.

    Example: kvrun deployments rebuild chat --memory 16GiB --set engine.max_num_seqs=64
    """
    changes = {
        "name": name,
        "model": model,
        "engine": engine,
        "multi_tenant": multi_tenant,
        "stateless": stateless,
        "context_window": context_window,
        "memory_bytes": size_of("--memory", memory),
        "disk_bytes": size_of("--disk", disk),
        "labels": labels_of(label or []),
        "gpu_ids": gpu or None,
        "allow_shared_gpu": allow_shared_gpu,
    }
    named = {field: value for field, value in changes.items() if value is not None}
    with connect(api_url, api_key_file) as client:
        found = the_deployment(client, deployment, workspace)
        spec: DeploymentSpec | None = None
        if named or setting:
            settings = {**found.spec.settings, **settings_of(setting or [])}
            spec = msgspec.convert(
                {**msgspec.to_builtins(found.spec), **named, "settings": settings}, DeploymentSpec
            )
        done = client.deployments.rebuild(found.id, spec)
    if as_json:
        print_json(done)
    else:
        console().print(f"{done.spec.name} ({done.id}): {done.state}, instance {done.instance}")
