"""``kvrun remote``: what other commands do beside a deployment, through a control plane's API."""

import typer

from kvrun.cli import remote_erase, remote_evidence, remote_finetune, remote_read

app = typer.Typer(no_args_is_help=True)


@app.callback()
def remote() -> None:
    """Erase, read logs, make evidence and fine-tunes, through a control plane's API.

    The commands without `remote` work beside a deployment, on its own configuration. These need an
    API key only: KVRUN_API_KEY or a file, at --api-url. Deployments, users, members and API keys
    have groups of their own, as have erasures by label and of workspaces: `kvrun erase`.
    """


app.command()(remote_erase.erase)
app.command("erase-user")(remote_erase.erase_user)
app.command()(remote_erase.erasures)
app.command()(remote_erase.approvals)
app.command()(remote_erase.refuse)
app.command()(remote_read.certificates)
app.command()(remote_read.certificate)
app.command()(remote_read.trust)
app.command()(remote_read.audit)
app.command()(remote_read.records)
app.command()(remote_read.segment)
app.command()(remote_read.alerts)
app.command()(remote_read.acknowledge)
app.command()(remote_read.storage)
app.command()(remote_read.fetch)
app.command()(remote_evidence.controls)
app.command()(remote_evidence.evidence)
app.command("evidence-list")(remote_evidence.evidence_list)
app.command()(remote_evidence.isolation)
app.command()(remote_finetune.finetunes)
app.command()(remote_finetune.finetune)
app.command("finetune-create")(remote_finetune.create)
app.command("finetune-resume")(remote_finetune.resume)
app.command("finetune-cancel")(remote_finetune.cancel)
app.command("finetune-delete")(remote_finetune.delete)
