"""Compares sinks with the log before a driver claims the pond, and rewinds them to the log for `millpond repair`.

A log that has lost its newest records, or a pond's folder that was restored from an older copy, goes on with other
records under the numbers of the lost ones. A sink that has rows of the lost records would then get the rows of the same
events a second time. So a claim is refused while a local sink is ahead of the log. Sinks on other hosts are checked at
the first write to them, and stop then by themselves (`log.cursor`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from millpond.clock import lap_us
from millpond.control.wiring.truth import Truth
from millpond.errors import AheadError
from millpond.log.cursor import NOTHING_APPLIED, Cursor, ahead, cursor_at, cursor_of, last_common, named
from millpond.log.follower import Follower, Remote, Reversible
from millpond.log.manifest import Manifest, load
from millpond.log.records import decode
from millpond.plan.explain.amounts import with_progress

_log = logging.getLogger("millpond.pond")


def check_sinks(truth: Truth, followers: Iterable[Follower]) -> None:
    """Check that no sink has rows of records that the log does not have.

    Raises:
        AheadError: a sink has such rows; nothing was changed.
    """
    for follower in followers:
        cursor = _known(follower)
        if not _is_in_log(truth, cursor):
            raise ahead(follower.name, cursor, _head(truth).n)


def reconcile(truth: Truth, followers: Iterable[Follower]) -> list[str]:
    """Rewind every sink that is ahead of the log to the newest record that both have.

    Returns one sentence for each action. Sinks on other hosts are checked, too. May be repeated. The progress is
    logged.

    Raises:
        AheadError: a sink cannot be rewound; the cure says what is left to do by hand.
        StoreError: a sink on another host does not answer.
    """
    done: list[str] = []
    refused: list[AheadError] = []
    for follower in with_progress([*followers], "sinks are checked", _log.info, lap_us):
        cursor = follower.cursor() if isinstance(follower, Reversible) else _known(follower)
        if _is_in_log(truth, cursor):
            continue
        try:
            done.append(f"{named(follower.name)} {_brought_back(truth, follower, cursor)}.")
        except AheadError as error:
            refused.append(error)
    if refused:
        what = " ".join([*done, *(error.what for error in refused)])
        raise AheadError(what, " ".join(error.cure for error in refused))
    return done


def _brought_back(truth: Truth, follower: Follower, cursor: Cursor) -> str:
    head = _head(truth)
    common = last_common(truth.log, cursor, head.n)
    if common is None and cursor.n > head.n and not isinstance(follower, Remote):
        # A local sink is checked before each claim, so the log got no record since the sink was ahead.
        common = cursor_of(head)
    if common is None or not isinstance(follower, Reversible):
        raise ahead(
            follower.name, cursor, head.n,
            "It is not known which of its rows belong to lost records. Restore the folder `log` from a newer copy, or "
            "begin a new pond that writes to another place.",
        )  # fmt: skip
    try:
        return follower.rewind(common)
    except AheadError as error:
        raise ahead(follower.name, cursor, head.n, error.cure) from error  # it does not know the end of the log


def _known(follower: Follower) -> Cursor:
    return follower.known() if isinstance(follower, Remote) else follower.cursor()


def _head(truth: Truth) -> Manifest:
    return load(truth.log, truth.manifests, known=truth.manifest)


def _is_in_log(truth: Truth, cursor: Cursor) -> bool:
    """Whether the log has the record that a cursor names; reads only that record."""
    if cursor.n == NOTHING_APPLIED:
        return True
    data = truth.log.read(cursor.n)
    return data is not None and cursor.mark in ("", cursor_at(decode(data, truth.log.describe(cursor.n))).mark)
