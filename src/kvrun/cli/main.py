"""``kvrun``: the command line's root, and how errors become text and an exit status."""

import shutil
import sys
from typing import Annotated, Any

import typer
from typer import rich_utils
from typer.core import TyperGroup

from kvrun import __version__
from kvrun.cli import (
    apikeys,
    audit,
    bench,
    cache,
    certificate,
    control_plane,
    demo,
    deployment_attach,
    deployment_rebuild,
    deployment_views,
    deployments,
    doctor,
    engine,
    erase,
    erase_user,
    erase_wide,
    evidence,
    finetune,
    init,
    instance,
    keys,
    login,
    policy,
    remote_commands,
    requests,
    residency,
    run_one,
    second_person,
    service_accounts,
    status,
    trust,
    up,
    user_labels,
    users,
    verify,
    witness,
    workspaces,
)
from kvrun.cli.options import WIDTH
from kvrun.cli.terminal import guard_terminal
from kvrun.errors import KvrunError


class _Root(TyperGroup):
    """Turns the errors that people can act on into text on standard error."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KvrunError as error:
            sys.stderr.write(f"kvrun: {error.diagnostics()}\n")
            raise SystemExit(error.exit_code) from None


app = typer.Typer(
    name="kvrun",
    cls=_Root,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def main() -> None:
    """The console script's entry point."""
    guard_terminal()
    # Help as wide as everything else that is printed; typer itself fills any terminal.
    rich_utils.MAX_WIDTH = min(WIDTH, shutil.get_terminal_size().columns)
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"kvrun {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it."),
    ] = False,
) -> None:
    """Serve language models with a sealed, per-tenant, erasable and audited KV cache.

    Example: kvrun init chat && cd chat && kvrun up
    """


app.command("init")(init.init)
app.command("up")(up.up)
app.command("gateway")(run_one.gateway)
app.command("status")(status.status)
app.command("demo")(demo.demo)
app.command("verify")(verify.verify_command)
app.command("login")(login.login)
app.command("logout")(login.logout)
app.command("logins")(login.logins)
app.add_typer(apikeys.app, name="apikeys")
app.add_typer(audit.app, name="audit")
app.add_typer(bench.app, name="bench")
app.add_typer(cache.app, name="cache")
app.add_typer(certificate.app, name="certificate")
app.add_typer(control_plane.app, name="control")
for name, command in (
    ("rebuild", deployment_rebuild.rebuild),
    ("overview", deployment_views.overview),
    ("cache", deployment_views.cache),
    ("policy", deployment_views.policy),
    ("logs", deployment_views.logs),
    ("attach-token", deployment_attach.attach_token),
    ("attach", deployment_attach.attach),
    ("detach", deployment_attach.detach),
):
    deployments.app.command(name)(command)
app.add_typer(deployments.app, name="deployments")
app.add_typer(engine.app, name="engine")
erase.app.command("user")(erase_user.user)
erase.app.command("workspace")(erase_wide.workspace)
erase.app.command("account")(erase_wide.account)
erase.app.command("tenants")(erase_wide.tenants)
erase.app.command("requests")(second_person.requests)
erase.app.command("approve")(second_person.approve)
erase.app.command("refuse")(second_person.refuse)
app.add_typer(erase.app, name="erase")
app.add_typer(finetune.app, name="finetune")
app.add_typer(doctor.app, name="doctor")
app.add_typer(evidence.app, name="evidence")
app.add_typer(keys.app, name="keys")
app.add_typer(instance.app, name="instance")
app.add_typer(workspaces.members_app, name="members")
app.add_typer(policy.app, name="policy")
app.add_typer(remote_commands.app, name="remote")
app.add_typer(requests.app, name="requests")
app.add_typer(residency.app, name="residency")
app.add_typer(service_accounts.app, name="service-accounts")
app.add_typer(trust.app, name="trust")
users.app.command("label")(user_labels.label)
users.app.command("import")(user_labels.import_list)
app.add_typer(users.app, name="users")
app.add_typer(witness.app, name="witness")
app.add_typer(workspaces.app, name="workspaces")
