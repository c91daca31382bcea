"""``kvrun deployments``: the deployments of a control plane."""

from collections.abc import Callable
from typing import Annotated

import typer

from kvrun.cli.deployment_options import labels_of, settings_of, size_of
from kvrun.cli.options import AsJson, console, print_json
from kvrun.cli.remote import (
    DEFAULT_API_URL,
    ApiKeyFile,
    ApiUrl,
    InWorkspace,
    Named,
    Yes,
    confirm,
    connect,
    moment,
    show,
    the_deployment,
    the_workspace,
)
from kvrun.client import Client
from kvrun.client.results.deployments import Deployment

app = typer.Typer(no_args_is_help=True)
Wait = Annotated[
    float, typer.Option("--wait", min=0, metavar="SECONDS", help="Wait until it is done.")
]


@app.callback()
def deployments() -> None:
    """Make, start, stop and delete deployments of a control plane.

    The control plane is at --api-url; its API key comes from KVRUN_API_KEY or a file.
    """


@app.command("list")
def list_deployments(
    workspace: InWorkspace = "",
    deleted: Annotated[bool, typer.Option("--deleted", help="Deleted ones too.")] = False,
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show a workspace's deployments with their state.

    Example: kvrun deployments list --workspace acme --json
    """
    with connect(api_url, api_key_file) as client:
        place = the_workspace(client, workspace)
        found = list(client.deployments.list(place.id, deleted=deleted))
    show(
        found,
        as_json,
        ("id", "name", "state", "model", "endpoint", "since"),
        lambda d: (d.id, d.spec.name, d.state, d.spec.model, d.endpoint, moment(d.state_since)),
    )


@app.command("show")
def show_deployment(
    deployment: Named,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show one deployment: its state and why, where it answers, and what may be asked of it.

    Example: kvrun deployments show chat
    """
    with connect(api_url, api_key_file) as client:
        _print(the_deployment(client, deployment, workspace), as_json)


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name in the workspace.")],
    model: Annotated[str, typer.Option(help='Folder, Hugging Face id, "demo" or "tiny".')],
    multi_tenant: Annotated[
        bool,
        typer.Option(
            "--multi-tenant/--single-tenant",
            help="A product with customers, whose requests name their user; or an internal tool.",
        ),
    ],
    stateless: Annotated[
        bool, typer.Option("--stateless", help="Keep nothing after a request.")
    ] = False,
    context_window: Annotated[
        int | None, typer.Option(min=16, help="Tokens; usual: the model's own.")
    ] = None,
    memory: Annotated[str | None, typer.Option(help='Memory tier, such as "8GiB".')] = None,
    disk: Annotated[str | None, typer.Option(help='Disk tier, such as "100GiB".')] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A label. Repeatable.")
    ] = None,
    gpu: Annotated[list[int] | None, typer.Option(help="A GPU's number. Repeatable.")] = None,
    engine: Annotated[str | None, typer.Option(help='"vllm" or "llama.cpp".')] = None,
    allow_shared_gpu: Annotated[
        bool, typer.Option("--allow-shared-gpu", help="Start although others use a GPU of it.")
    ] = False,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A further setting. Repeatable."),
    ] = None,
    start: Annotated[bool, typer.Option("--start", help="Start it too.")] = False,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a deployment; warn where its key root cannot prove that keys are gone.

    Example: kvrun deployments create chat --model demo --multi-tenant --start
    """
    with connect(api_url, api_key_file) as client:
        made: Deployment
        made = new = client.deployments.create(
            the_workspace(client, workspace).id,
            name,
            model,
            multi_tenant=multi_tenant,
            stateless=stateless,
            context_window=context_window,
            memory_bytes=size_of("--memory", memory),
            disk_bytes=size_of("--disk", disk),
            labels=labels_of(label or []),
            gpu_ids=gpu,
            engine=engine,
            allow_shared_gpu=allow_shared_gpu or None,
            settings=settings_of(setting or []) or None,
        )
        if start:
            made = client.deployments.start(new.id)
    for warning in new.warnings:
        console(stderr=True).print(f"warning: {warning}", soft_wrap=True)
    _print(made, as_json)


@app.command()
def start(
    deployment: Named,
    wait: Wait = 0.0,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Start a deployment.

    Example: kvrun deployments start chat --wait 600
    """
    with connect(api_url, api_key_file) as client:
        _ask(client, deployment, workspace, client.deployments.start, "running", wait, as_json)


@app.command()
def stop(
    deployment: Named,
    wait: Wait = 0.0,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Stop a deployment: running requests end, what is on disk stays.

    Example: kvrun deployments stop chat
    """
    with connect(api_url, api_key_file) as client:
        _ask(client, deployment, workspace, client.deployments.stop, "stopped", wait, as_json)


@app.command()
def restart(
    deployment: Named,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Stop a deployment and start it again.

    Example: kvrun deployments restart chat
    """
    with connect(api_url, api_key_file) as client:
        _ask(client, deployment, workspace, client.deployments.restart, "", 0.0, as_json)


@app.command()
def drain(
    deployment: Named,
    wait: Wait = 0.0,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Let a deployment take no new requests, and stop when the last one is done.

    Example: kvrun deployments drain chat --wait 600
    """
    with connect(api_url, api_key_file) as client:
        _ask(client, deployment, workspace, client.deployments.drain, "stopped", wait, as_json)


@app.command()
def delete(
    deployment: Named,
    yes: Yes = False,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Destroy a deployment's keys, with a certificate, and its cached ciphertext; the log stays.

    Example: kvrun deployments delete chat --yes
    """
    with connect(api_url, api_key_file) as client:
        found = the_deployment(client, deployment, workspace)
        confirm(f"Delete {found.spec.name} ({found.id}) and destroy its keys?", yes)
        done = client.deployments.delete(found.id, found.spec.name)
    if as_json:
        print_json(done)
        return
    out = console()
    out.print(f"{found.spec.name} is {done.deployment.state}; its log is kept")
    for certificate in done.certificates:
        out.print(f"certificate {certificate}")


def _ask(
    client: Client,
    deployment: str,
    workspace: str,
    command: Callable[[str], Deployment],
    state: str,
    wait: float,
    as_json: bool,
) -> None:
    done = command(the_deployment(client, deployment, workspace).id)
    if wait and state:
        with console(stderr=True).status(f"waiting until it is {state}"):
            done = client.deployments.wait(done.id, state, timeout_s=wait)
    _print(done, as_json)


def _print(found: Deployment, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    out = console()
    out.print(f"{found.spec.name} ({found.id}): {found.state}")
    for name, value in (
        ("why", found.reason),
        ("model", found.spec.model),
        ("endpoint", found.endpoint),
        ("kind", "stateless" if found.spec.stateless else ""),
        ("GPU", "shared with other processes" if found.shares_gpu else ""),
        ("may be asked", ", ".join(found.commands)),
    ):
        if value:
            out.print(f"  {name}: {value}")
