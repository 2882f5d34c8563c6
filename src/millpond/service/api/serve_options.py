"""The options of `millpond serve`, without imports of the libraries that serving needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from millpond.control.stall_limits import STALLED_SECONDS
from millpond.log.locations.address import Given
from millpond.placement.autoscale_policy import Policy

if TYPE_CHECKING:  # the import would load numpy
    from millpond.plan.options.live_parameters import Constant


class Options(NamedTuple):
    """The pond to serve: the `text` of the pond file with which a new pond begins, its folder, and how it runs.

    `out`: the folder for rows of queries without a path, and of those that are added over the network (None: `out`
    below the pond's address).
    `patience`: a standby takes over from a leader without a sign of life for this many seconds. `shards`: stores to
    which clients may move served rows, besides the pond's own. `autoscale`: the policy that changes the number of
    instances. `parameters`: first values of live parameters. `stalled_after`: see `Pond`, in seconds. `pushed`: the
    streams into which clients may push events. `spark`: settings of Spark.
    """

    text: str
    folder: Given
    master: str
    memory: str
    store: str
    instances: int | None
    out: Path | None
    patience: float
    shards: tuple[str, ...] = ()
    autoscale: Policy | None = None
    parameters: tuple[tuple[str, Constant], ...] = ()
    stalled_after: float = STALLED_SECONDS
    pushed: tuple[str, ...] = ()
    spark: tuple[tuple[str, str], ...] = ()
