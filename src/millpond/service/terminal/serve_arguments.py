"""The options of `millpond serve`, and of the commands that share them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from millpond.placement.autoscale_policy import Policy

Serving = Annotated[
    str, typer.Option("--listen", metavar="HOST:PORT", help="The address to listen on. Port 0 is any free port.")
]
Pg = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--pg", metavar="HOST:PORT", help="Also answer PostgreSQL clients; the token is their password."),
]
Certificate = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--tls-cert", metavar="FILE.pem", help="TLS certificate. Required unless the address is 127.0.0.1."),
]
Key = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--tls-key", metavar="FILE.pem", help="Key of the TLS certificate."),
]
Hosts = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--allow-host", metavar="NAME", help="Another host name that requests may use. Repeatable."),
]
Origins = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--allow-origin", metavar="URL", help="An origin whose web pages may call the service. Repeatable."),
]
Out = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--out", metavar="DIR", help="The folder for rows of added queries [default: DIR/out]."),
]
Shards = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--shard", metavar="STORE", help="A store that served rows may be moved to. Repeatable."),
]
Pushed = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--push", metavar="STREAM", help="A stream of JSON files that clients may add events to. Repeatable."),
]
Range = Annotated[str, typer.Option("--instances", metavar="LEAST-MOST", help="The allowed number of instances.")]
Autoscale = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--autoscale", metavar="LEAST-MOST", help="Add and remove instances with the load [default: off]."),
]
AutoscaleShards = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--autoscale-shards", metavar="LEAST-MOST", help="The shards of a Redis cluster follow."),
]
Target = Annotated[
    float, typer.Option("--target", min=0.05, max=0.95, help="The part of the time that instances should be busy.")
]
Params = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--param", metavar="NAME=VALUE", help="First value of the live parameter :NAME. Repeatable."),
]
Patience = Annotated[
    float, typer.Option("--patience", metavar="SECONDS", min=2, help="Take over if the leader is silent for this time.")
]


def policy_of(instances: str, target: float, shards: str | None = None) -> Policy:
    """The autoscaling policy for `LEAST-MOST` instances, a target, and `LEAST-MOST` shards (None: they stay).

    >>> policy_of("2-8", 0.6).most, policy_of("4", 0.6, "1-3").shards
    (8, (1, 3))
    """
    least, most = _bounds(instances)
    return Policy(target=target, least=least, most=most, shards=None if shards is None else _bounds(shards))


def _bounds(text: str) -> tuple[int, int]:
    least, divided, most = text.partition("-")
    if not (least.isdecimal() and (most.isdecimal() or not divided) and 1 <= int(least) <= int(most or least)):
        raise typer.BadParameter(f"{text!r} is not of the form LEAST-MOST, such as 1-8.")
    return int(least), int(most or least)


def host_and_port(listen: str) -> tuple[str, int]:
    """The address of an option HOST:PORT.

    >>> host_and_port("[::1]:80")
    ('::1', 80)
    """
    host, _, port = listen.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise typer.BadParameter(f"{listen!r} is not of the form HOST:PORT.")
    return host.strip("[]"), int(port)
