"""Names of dropped served queries are free when the view has followed the drop."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.control.wiring.attach_sinks import AttachedSinks
from millpond.errors import ChangeRefused
from millpond.model.change_history import Leaving, StoredQuery
from millpond.model.endpoints import Sink
from millpond.model.query import Query
from millpond.model.windows import Sliding


class Following:
    """Stands for the runners: a view that is at a record."""

    at = 4

    def cursors(self) -> dict[str, int]:
        return {"view": self.at}


class Checked:
    """Stands for a sink with a connection."""

    name = "sink:spend"
    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_a_name_that_was_served_before_a_restart_waits_for_the_view(tmp_path: Path) -> None:
    following = Following()
    attached = AttachedSinks(following, None, "p", tmp_path, None, None, {}, {})  # type: ignore[arg-type]
    spend = Query("spend", "s", "ts", 0, Sliding(1, 1), (), (), (), serve=True, sink=Sink("noop"))
    attached.add_last(Leaving(StoredQuery.of(spend), 5))
    with pytest.raises(ChangeRefused, match="spend that was dropped are still served"):
        attached.check(spend, stored=True)
    with pytest.raises(ChangeRefused, match="no store yet"):
        attached.check(spend, stored=False)
    following.at = 5
    attached.check(spend, stored=True)


def test_a_sink_that_was_only_checked_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Checked] = []

    def make(query: Query, *_: object, late: bool = False, **__: object) -> Checked:
        opened.append(Checked())
        return opened[-1]

    monkeypatch.setattr("millpond.control.wiring.attach_sinks.sink_follower", make)
    attached = AttachedSinks(Following(), None, "p", tmp_path, None, None, {}, {})  # type: ignore[arg-type]
    attached.check(Query("spend", "s", "ts", 0, Sliding(1, 1), (), (), (), late=Sink("json", str(tmp_path))), True)
    assert [one.closed for one in opened] == [1, 1]
