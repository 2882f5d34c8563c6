"""Defines the commands `millpond dlq`: dead letters are listed, shown and sent again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from millpond.clock import utc
from millpond.formats.escapes import printable
from millpond.service.api.user_name import user_name

dlq = typer.Typer(help="List, show and resend dead letters.", no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder that 'dead.path' of the stream names.")]
Pending = Annotated[bool, typer.Option("--pending", help="Leave out those that a replay has sent.")]


@dlq.command("list")
def list_dead_letters(folder: Folder, pending: Pending = False) -> None:
    """Count the dead letters by topic, reason and the replays that have sent them."""
    from millpond.control.diagnose.dead_letters import kinds, sent_text

    found = [kind for kind in kinds(folder) if not (pending and kind.sent)]
    for kind in found:
        times = f"{utc(kind.first_us)} .. {utc(kind.last_us)}"
        sent = f"  {printable(sent_text(kind.sent))}" if kind.sent else ""
        typer.echo(f"{kind.letters:>8}  {kind.topic}  {printable(kind.reason)}  {times}{sent}")
    typer.echo("" if found else "There are none.", nl=not found)


@dlq.command("show")
def show_dead_letters(
    folder: Folder,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Number of records, newest first.")] = 20,
    reason: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--reason", metavar="TEXT", help="Show only those whose reason contains this text."),
    ] = None,
    pending: Pending = False,
) -> None:
    """Show the newest dead letters, with their first bytes."""
    from millpond.control.diagnose.dead_letters import lines

    for line in lines(folder, limit, reason, pending=pending):
        typer.echo(line)


@dlq.command("replay")
def replay_dead_letters(
    folder: Folder,
    connection: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--connection", metavar="NAME", help="The connection to Kafka [default: the only one]."),
    ] = None,
    to: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--to", metavar="TOPIC", help="Send to this topic [default: the topic that they came from]."),
    ] = None,
    reason: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--reason", metavar="TEXT", help="Send only those whose reason contains this text."),
    ] = None,
    timeless: Annotated[
        bool, typer.Option("--timeless", help="Also send events whose time does not compute to their topic.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be sent.")] = False,
) -> None:
    """Send the records of dead letters to Kafka again, each exactly once.

    Events whose time does not compute are sent only with --timeless, or with --to to another topic.
    """
    from millpond.control.diagnose.dead_letters import left_out_line, repeated_line, replay, unsent

    if not to:
        typer.echo("A record that still does not parse comes back as a new dead letter.")
        typer.echo("An event whose window has closed meanwhile is late, as any other.")
    if dry_run:
        found, left_out = unsent(folder, connection, to, reason, timeless=timeless)
        for kind in found:
            typer.echo(f"{kind.letters:>8}  to {kind.topic}  {printable(kind.reason)}")
        typer.echo(f"{sum(kind.letters for kind in found)} would be sent.")
        if not to and (repeated := repeated_line(found)):
            typer.echo(repeated)
    else:
        sent, left_out = replay(folder, connection, to, reason, timeless=timeless, who=user_name())
        typer.echo(f"{sent} sent.")
    if left_out:
        typer.echo(left_out_line(left_out))
