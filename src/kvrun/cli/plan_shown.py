"""What an erasure's plan counted, for people: one table, whatever it is a plan of."""

import shlex
from collections.abc import Iterable, Sequence
from typing import Protocol

import typer
from rich.text import Text

from kvrun.cli.options import console, table
from kvrun.config.values import size_text


class CountedTier(Protocol):
    """Sealed blocks in one tier."""

    @property
    def tier(self) -> str:
        """Its name."""
        ...

    @property
    def blocks(self) -> int:
        """How many there are."""
        ...

    @property
    def bytes(self) -> int:
        """Their size."""
        ...


class Counted(Protocol):
    """What an erasure would reach in one deployment."""

    @property
    def tenants(self) -> int:
        """How many tenants."""
        ...

    @property
    def sessions(self) -> int:
        """How many session keys."""
        ...

    @property
    def requests(self) -> int:
        """How many running requests."""
        ...

    @property
    def tiers(self) -> Sequence[CountedTier]:
        """What each tier has of it."""
        ...

    @property
    def claim_class(self) -> str:
        """What the destroyed keys may be called."""
        ...


def show_plan(
    plans: Sequence[Counted],
    command: Sequence[str],
    token: str,
    *,
    needs_approval: bool = False,
    problems: Iterable[tuple[str, str]] = (),
) -> None:
    """The plans added up, and the ``command`` (word by word) that carries them out.

    ``problems`` are deployments, by name, that cannot be planned, and why.
    """
    rows = table("would be erased", "count")
    if len(plans) != 1:
        rows.add_row("deployments", str(len(plans)))
    rows.add_row("tenants", str(sum(plan.tenants for plan in plans)))
    rows.add_row("session keys", str(sum(plan.sessions for plan in plans)))
    rows.add_row("running requests", str(sum(plan.requests for plan in plans)))
    tiers = [tier for plan in plans for tier in plan.tiers]
    for name in dict.fromkeys(tier.tier for tier in tiers):
        here = [tier for tier in tiers if tier.tier == name]
        size = size_text(sum(tier.bytes for tier in here))
        rows.add_row(f"blocks, {name}", f"{sum(tier.blocks for tier in here)} ({size})")
    rows.add_row("class", ", ".join(sorted({plan.claim_class for plan in plans})) or "-")
    out = console()
    out.print(rows)
    for name, why in problems:
        out.print(Text.assemble(("cannot be planned:", "yellow"), f" {name}: {why}"))
    if not token:
        return
    typer.echo(f"token, for ten minutes: {token}")
    if needs_approval:
        typer.echo("a second person has to agree: the same command with --confirm and --ask")
    typer.echo(f"to erase: kvrun {shlex.join([*command, '--confirm', token])}")
