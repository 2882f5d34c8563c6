"""The options of `millpond serve`; this module needs none of the libraries that serving needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from millpond.placement.autoscale_policy import Policy

if TYPE_CHECKING:  # it loads numpy
    from millpond.plan.options.live_parameters import Constant


class Options(NamedTuple):
    """What is served: `text` of a pond file that a new pond begins with, the pond's folder, and how it runs.

    `out`: below it are the rows of queries that are added over the network (None: `out` in the pond's folder).
    `patience`: a leader that shows no sign of life for so many seconds is taken over from. `shards`: stores that served
    rows may be moved to over the network, besides the pond's own. `autoscale`: by which policy instances come and go.
    `parameters`: first values of live parameters.
    """

    text: str
    folder: Path
    master: str
    memory: str
    store: str
    instances: int | None
    out: Path | None
    patience: float
    shards: tuple[str, ...] = ()
    autoscale: Policy | None = None
    parameters: tuple[tuple[str, Constant], ...] = ()
