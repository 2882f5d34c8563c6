"""Parameters that query rows set: the values in force according to the log, and those that an epoch changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from millpond.log.manifest import Manifest
from millpond.log.records import Receipt
from millpond.model.expressions import Literal
from millpond.plan.options.live_parameters import MOST_MEMBERS
from millpond.plan.upstream.parameter_feeds import Feed, Share, merged, value_of
from millpond.runtime.task.counters import Counters


def fed_values(feeds: Iterable[Feed], manifest: Manifest) -> dict[str, Literal]:
    """The current values of fed parameters according to the log; parameters without any rows yet are left out."""
    stored = {} if isinstance(manifest.fed, msgspec.UnsetType) else manifest.fed
    return {
        feed.name: msgspec.json.decode(stored[feed.name].value, type=Literal)
        for feed in feeds
        if feed.name in stored and stored[feed.name].n > feed.n
    }


def changed_values(
    feeds: Iterable[Feed], receipts: Iterable[Receipt], before: Mapping[str, Literal], counters: Counters
) -> dict[str, str]:
    """The parameter values that an epoch's rows change, encoded for the record; `before`: the current values.

    A list that is too long leaves the value unchanged, and is counted as `feed_too_long` of its query.
    """
    shares: dict[str, Share] = {}
    for receipt in receipts:
        for name, share in receipt.fed.items():
            shares[name] = merged(shares.get(name), share)
    changed = {}
    for feed in feeds:
        merged_share = shares.get(feed.name)
        value = None if merged_share is None else value_of(feed, merged_share)
        too_many = value is not None and len(value.members or ()) > MOST_MEMBERS
        if too_many or (merged_share is not None and merged_share[1] is None):
            counters.of(feed.query).feed_too_long += 1
        elif value is not None and value != before.get(feed.name):
            changed[feed.name] = msgspec.json.encode(value).decode()
    return changed
