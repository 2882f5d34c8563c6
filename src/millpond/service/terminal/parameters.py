"""Defines the commands `millpond param`: live parameters are listed, set, fed and removed."""

from __future__ import annotations

from typing import Annotated

import typer

from millpond.errors import RequestError
from millpond.service.terminal import commands
from millpond.service.terminal.commands import Folder, Json, Token, Trusted, Url, print_change, print_lines
from millpond.service.terminal.parse_arguments import assigned
from millpond.service.terminal.text import parameter_line

param = typer.Typer(help="List, set, feed and remove live parameters.", no_args_is_help=True, rich_markup_mode=None)


@param.command("list")
def list_parameters(
    checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None, as_json: Json = False
) -> None:
    """List the live parameters and their values."""
    with commands.client(checkpoint, url, token, ca) as pond:
        found = pond.params()
    print_lines(found, as_json, map(parameter_line, found), "The pond has no live parameters.")


@param.command("set")
def put(
    values: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="A number, true, false or text.")],
    new: Annotated[bool, typer.Option("--new", help="Also make parameters, for queries that come later.")] = False,
    checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Set live parameters, from the next epoch on."""
    with commands.client(checkpoint, url, token, ca) as pond:
        for name, value in [assigned(one) for one in values]:
            print_change(pond.param(name, value, new=new), as_json)


@param.command("unset")
def unset(
    name: str, checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Remove a live parameter that no query uses."""
    with commands.client(checkpoint, url, token, ca) as pond:
        print_change(pond.unset(name), as_json)


@param.command("feed")
def feed(
    name: str, source: Annotated[str, typer.Option("--from", metavar="QUERY.COLUMN", help="Whose rows feed it.")],
    checkpoint: Folder = None, url: Url = None, token: Token = None, ca: Trusted = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Take a parameter from the newest rows of a query, until it is set."""
    query, divided, column = source.partition(".")
    if not divided:
        raise RequestError(f"{source!r} is not of the form QUERY.COLUMN.", "Write --from top.merchant.")
    with commands.client(checkpoint, url, token, ca) as pond:
        print_change(pond.feed(name, query, column), as_json)
