"""The options of `millpond run` and `millpond serve`, made from the table of settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from millpond.control.commands.command_log import write_json
from millpond.placement.autoscale_policy import Policy
from millpond.service.api.settings import BY_NAME
from millpond.service.api.settings_file import FILE, check_environment, export, read_settings


def _option(name: str, callback: Callable[[typer.Context, str], str] | None = None) -> Any:
    """The option of a setting; the command line goes before its variable, and that before the file of settings."""
    one = BY_NAME[name]
    return typer.Option(
        f"--{name}", metavar=one.metavar, help=one.help, min=one.least, max=one.most, envvar=one.variable,
        show_envvar=False, callback=callback,
    )  # fmt: skip


def _use_file(context: typer.Context, given: Optional[Path]) -> Optional[Path]:  # noqa: UP045
    """Take the settings of the file as defaults of the other parameters; called before these are read."""
    check_environment()
    found = read_settings(given)
    export(found)
    parameters = {option: one.name for one in context.command.params for option in one.opts}
    context.default_map = {parameters.get(f"--{name}") or name: value for name, value in found.items()}
    return given


def _begin_log(context: typer.Context, given: str) -> str:
    """Write the log in the given format, from before the first message on."""
    del context
    if BY_NAME["log-format"].fault(given) is not None:
        raise typer.BadParameter(f"{given!r} is neither text nor json.")
    if given == "json":
        write_json()
    return given


Config = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--config", metavar="FILE.toml", callback=_use_file, is_eager=True,
                 help=f"The file of settings [default: {FILE}, if it exists]."),
]  # fmt: skip
File = Annotated[
    Path,
    typer.Argument(metavar="FILE.sql", help=BY_NAME["file"].help, envvar=BY_NAME["file"].variable, show_envvar=False),
]
Master = Annotated[str, _option("master")]
Memory = Annotated[str, _option("memory")]
StoreAddress = Annotated[str, _option("store")]
Checkpoint = Annotated[Optional[Path], _option("checkpoint")]  # noqa: UP045
Instances = Annotated[Optional[int], _option("instances")]  # noqa: UP045
Stalled = Annotated[float, _option("stalled-after")]
Params = Annotated[Optional[list[str]], _option("param")]  # noqa: UP045
Conf = Annotated[Optional[list[str]], _option("conf")]  # noqa: UP045
LogFormat = Annotated[str, _option("log-format", _begin_log)]
Once = Annotated[bool, _option("once")]
Drain = Annotated[bool, _option("drain")]
Trace = Annotated[Optional[Path], _option("trace")]  # noqa: UP045
Serving = Annotated[str, _option("listen")]
Pg = Annotated[Optional[str], _option("pg")]  # noqa: UP045
Certificate = Annotated[Optional[Path], _option("tls-cert")]  # noqa: UP045
Key = Annotated[Optional[Path], _option("tls-key")]  # noqa: UP045
Hosts = Annotated[Optional[list[str]], _option("allow-host")]  # noqa: UP045
Origins = Annotated[Optional[list[str]], _option("allow-origin")]  # noqa: UP045
Out = Annotated[Optional[Path], _option("out")]  # noqa: UP045
Shards = Annotated[Optional[list[str]], _option("shard")]  # noqa: UP045
Pushed = Annotated[Optional[list[str]], _option("push")]  # noqa: UP045
Range = Annotated[str, typer.Option("--instances", metavar="LEAST-MOST", help="The allowed number of instances.")]
Autoscale = Annotated[Optional[str], _option("autoscale")]  # noqa: UP045
AutoscaleShards = Annotated[Optional[str], _option("autoscale-shards")]  # noqa: UP045
Target = Annotated[float, _option("target")]
Patience = Annotated[float, _option("patience")]


def policy_of(instances: str, target: float, shards: str | None = None) -> Policy:
    """The autoscaling policy for `LEAST-MOST` instances, a target, and `LEAST-MOST` shards (None: they stay).

    >>> policy_of("2-8", 0.6).max_instances, policy_of("4", 0.6, "1-3").shards
    (8, (1, 3))
    """
    least, most = _bounds(instances)
    bounds = None if shards is None else _bounds(shards)
    return Policy(target=target, min_instances=least, max_instances=most, shards=bounds)


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
