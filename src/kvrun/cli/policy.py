"""``kvrun policy``: write, try out and follow residency policies."""

import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from kvrun.audit.cursor import read_recent
from kvrun.cli import policy_sync, policy_violations
from kvrun.cli.audit_folder import LogFolder, read_log
from kvrun.cli.options import (
    DEFAULT_CONFIG,
    AsJson,
    ConfigFile,
    console,
    print_json,
    read_config,
    table,
)
from kvrun.cli.policy_source import (
    ClassOption,
    InFolder,
    InRepository,
    LabelOption,
    PolicyPath,
    RegionOption,
    config_or_default,
    meant,
    revision_in,
    seconds_of,
    tenant_from,
)
from kvrun.config.values import size_text
from kvrun.policy.compare import FileChange, compare
from kvrun.policy.compile import Decision
from kvrun.policy.document import TIER_NAMES, Tier, schema_text
from kvrun.policy.errors import PolicyError
from kvrun.policy.named import ACTIVE
from kvrun.policy.recorded import simulated
from kvrun.policy.setup import believed_facts, folder_of
from kvrun.policy.testing import explain as explain_decision
from kvrun.policy.testing import run_tests

app = typer.Typer(no_args_is_help=True)
_POLICIES = Path("policies")


@app.callback()
def policy() -> None:
    """Write, test, compare and follow residency policies: where context may live."""


@app.command()
def lint(path: PolicyPath = _POLICIES, as_json: AsJson = False) -> None:
    """Check every policy in a folder; each problem is shown with file, line and column.

    Example: kvrun policy lint policies/
    """
    found = revision_in(path)
    if as_json:
        print_json({"policies": [rule.name for rule in found.rules]})
    else:
        console().print(f"{len(found.rules)} policies are right")


@app.command("test")
def run_inline_tests(path: PolicyPath = _POLICIES, as_json: AsJson = False) -> None:
    """Run the tests that the policies carry; ends with status 1 when one fails.

    Each test is decided by all policies of the folder together.

    Example: kvrun policy test policies/
    """
    run = run_tests(revision_in(path))
    if as_json:
        print_json({"passed": run.passed, "failures": [str(item) for item in run.failures]})
    else:
        for failure in run.failures:
            console().print(str(failure), soft_wrap=True)
        console().print(f"{run.passed} tests passed, {len(run.failures)} failed")
    raise typer.Exit(1 if run.failures else 0)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a policy, for editors.

    Example: kvrun policy schema > residency-policy.schema.json
    """
    sys.stdout.write(schema_text())


@app.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="REV1", help="Commit, folder or 'active'.")],
    after: Annotated[str, typer.Argument(metavar="REV2", help="Commit, folder or 'active'.")],
    repository: InRepository = None,
    folder: InFolder = "policies",
    files: Annotated[bool, typer.Option("--files", help="Show the files' lines too.")] = False,
    config_file: ConfigFile = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Show which policies differ between two revisions, and whose decisions change.

    Decisions are those of the configured instance about the tenants that it knows.

    Example: kvrun policy diff active ./policies
    """
    config = config_or_default(config_file)
    found = compare(
        meant(before, config, repository, folder),
        meant(after, config, repository, folder),
        believed_facts(config),
        folder_of(config).tenants(),
    )
    if as_json:
        print_json({"changes": found.changes, "decisions": found.decisions, "files": found.files})
        return
    out = console()
    if files:
        for file in found.files:
            _show_file(file)
    rows = table("policy", "change", "where", "what")
    for change in found.changes:
        where = change.after or change.before
        rows.add_row(change.rule, change.kind, where, "\n".join(change.fields))
    out.print(rows if found.changes else "no policy differs")
    if found.decisions:
        rows = table("tier", "before", "after", "tenants", "for example")
        for flip in found.decisions:
            sides = (_answer(flip.before), _answer(flip.after))
            rows.add_row(flip.tier, *sides, str(flip.tenants), flip.example or "(not known)")
        out.print(rows)
    else:
        out.print("no decision of this instance changes")


@app.command()
def explain(
    tenant: Annotated[str, typer.Option("--tenant", help="Reference of a known tenant.")] = "",
    tenant_class: ClassOption = "",
    tenant_region: RegionOption = "",
    label: LabelOption = None,
    tier: Annotated[str, typer.Option(help="gpu, memory, disk or object; all by default.")] = "",
    revision: Annotated[
        str, typer.Option("--revision", help="Commit, folder or 'active'.")
    ] = ACTIVE,
    repository: InRepository = None,
    folder: InFolder = "policies",
    config_file: ConfigFile = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Say why blocks of a tenant may or may not be in a tier: policy, file, line and commit.

    Example: kvrun policy explain --class eu --tier object
    """
    config = config_or_default(config_file)
    found = meant(revision, config, repository, folder).revision
    whose = tenant_from(tenant_class, tenant_region, label)
    if tenant:
        known = folder_of(config).tenants()
        if tenant not in known:
            raise PolicyError(
                f"nothing is known of the tenant {tenant[:80]!r}",
                hint="Name its reference in the log, or --class and --label.",
            )
        whose = known[tenant]
    tiers = [Tier[_tier(tier).upper()]] if tier else list(Tier)
    facts = believed_facts(config)
    answers = {each: explain_decision(found, facts, whose, each) for each in tiers}
    if as_json:
        print_json(
            {
                "revision": found.id,
                "tiers": {TIER_NAMES[each]: answer for each, answer in answers.items()},
            }
        )
        return
    out = console()
    out.print(f"revision {found.id}", highlight=False)
    rows = table("tier", "answer", "policy", "where", "matches", "because")
    for each, answer in answers.items():
        decision = answer.decision
        name, said = TIER_NAMES[each], _answer(decision)
        if not answer.traces:
            rows.add_row(name, said, "-", "-", "-", decision.why.value)
        for trace in answer.traces:
            because = trace.refuses or trace.reason or "allows it"
            row = (trace.rule, trace.where, trace.matched.value, because)
            rows.add_row(name, said, *row)
            name, said = "", Text()
    out.print(rows)


@app.command()
def simulate(
    revision: Annotated[str, typer.Argument(metavar="REV", help="Commit, folder or 'active'.")],
    since: Annotated[str, typer.Option(help="How far back: 24h, 7d.")] = "24h",
    repository: InRepository = None,
    policies: InFolder = "policies",
    folder: LogFolder = None,
    config_file: ConfigFile = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Say what a revision would have decided about the placements in the audit log.

    Tenants are judged by what is known of them now.

    Example: kvrun policy simulate ./policies --since 24h
    """
    config = read_config(config_file)
    found = meant(revision, config, repository, policies).revision
    begin = time.time() - seconds_of(since)
    log = read_log(folder, config_file, "policy simulate")
    records, _ = read_recent(log, begin)
    result = simulated(config, found, records, begin)
    if as_json:
        print_json(msgspec.to_builtins(result, order="deterministic"))
        return
    out = console()
    out.print(f"{result.placements} placements, {result.refused} of them refused by {found.id}")
    rows = table("tier", "would be", "placements", "size", "tenants", "policy", "because")
    for group in result.changes:
        rows.add_row(
            group.tier,
            "allowed" if group.now_allowed else "refused",
            str(group.placements),
            size_text(group.size_bytes),
            str(len(group.tenants)),
            f"{group.rule} {group.where}".strip() or "-",
            group.why,
        )
    out.print(rows if result.changes else "nothing would have been decided otherwise")


app.command("sync")(policy_sync.sync)
app.command("status")(policy_sync.status)
app.command("violations")(policy_violations.violations)


def _show_file(file: FileChange) -> None:
    out = console()
    out.print(f"{file.path} ({file.kind}{', too long to show' if file.cut else ''})")
    for line in file.lines:
        style = {"+": "green", "-": "red"}.get(line[:1], "")
        out.print(line, highlight=False, style=style, soft_wrap=True)


def _answer(decision: Decision) -> Text:
    said = ("allowed", "green") if decision.allowed else ("refused", "red")
    more = ""
    if decision.ttl_s is not None:
        more += f" for {decision.ttl_s} s"
    if decision.max_bytes is not None:
        more += f" up to {size_text(decision.max_bytes)}"
    return Text.assemble(said, more)


def _tier(name: str) -> str:
    if name not in TIER_NAMES:
        raise PolicyError(f"{name!r} is no tier", hint=f"Allowed: {', '.join(TIER_NAMES)}.")
    return name
