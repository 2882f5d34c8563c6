"""Compares what sinks have with the log before a driver claims it, and brings them back to it for `millpond repair`.

A log that has lost its newest records, or a pond's folder that was restored from an older copy, goes on with other
records under the numbers of the lost ones. Whoever has the rows of lost records would then get those of the same
events once more. So a claim is refused while a sink that can be asked at once is ahead of the log; sinks on other
hosts are asked when they are first written to, and stop there by themselves (`log.cursor`).
"""

from __future__ import annotations

from collections.abc import Iterable

from millpond.control.wiring.adapters import Truth
from millpond.errors import AheadError
from millpond.log.cursor import NOTHING_APPLIED, Cursor, ahead, cursor_at, cursor_of, last_common, named
from millpond.log.follower import Follower, Remote, Reversible
from millpond.log.manifest import Manifest, load
from millpond.log.records import decode


def check_sinks(truth: Truth, followers: Iterable[Follower]) -> None:
    """Make sure that no sink has rows of records that the log does not have.

    Raises:
        AheadError: one has; nothing was changed.
    """
    for follower in followers:
        cursor = _known(follower)
        if not _is_in_log(truth, cursor):
            raise ahead(follower.name, cursor, _head(truth).n)


def reconcile(truth: Truth, followers: Iterable[Follower]) -> list[str]:
    """Bring every sink that is ahead of the log back to the newest record that both have.

    Returns what was done, a sentence each. Sinks on other hosts are asked, too. May be repeated.

    Raises:
        AheadError: one cannot be brought back; the cure says what is left to do by hand.
        StoreError: one on another host does not answer.
    """
    done: list[str] = []
    refused: list[AheadError] = []
    for follower in followers:
        cursor = follower.cursor() if isinstance(follower, Reversible) else _known(follower)
        if _is_in_log(truth, cursor):
            continue
        try:
            done.append(f"{named(follower.name)} {_brought_back(truth, follower, cursor)}.")
        except AheadError as error:
            refused.append(error)
    if refused:
        told = " ".join([*done, *(error.what for error in refused)])
        raise AheadError(told, " ".join(error.cure for error in refused))
    return done


def _brought_back(truth: Truth, follower: Follower, cursor: Cursor) -> str:
    head = _head(truth)
    common = last_common(truth.log, cursor, head.n)
    if common is None and cursor.n > head.n and not isinstance(follower, Remote):
        # It was asked before each claim, so the log has not gone on since it was ahead.
        common = cursor_of(head)
    if common is None or not isinstance(follower, Reversible):
        raise ahead(
            follower.name, cursor, head.n,
            "Which of its rows are of lost records cannot be told. Restore the folder `log` from a newer copy, or "
            "begin a new pond that writes to another place.",
        )  # fmt: skip
    try:
        return follower.rewind(common)
    except AheadError as error:
        raise ahead(follower.name, cursor, head.n, error.cure) from error  # it does not know where the log ends


def _known(follower: Follower) -> Cursor:
    return follower.known() if isinstance(follower, Remote) else follower.cursor()


def _head(truth: Truth) -> Manifest:
    return load(truth.log, truth.manifests, known=truth.manifest)


def _is_in_log(truth: Truth, cursor: Cursor) -> bool:
    """Whether the log has the record that a cursor names; reads that record alone."""
    if cursor.n == NOTHING_APPLIED:
        return True
    data = truth.log.read(cursor.n)
    return data is not None and cursor.mark in ("", cursor_at(decode(data, truth.log.told(cursor.n))).mark)
