"""Sinks and dead letters of queries that are added and dropped while a pond runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.control.wiring.attach_sinks import AttachedSinks
from millpond.errors import ChangeRefused
from millpond.followers.sinks.folder import folder_cursor
from millpond.log.cursor import Cursor
from millpond.log.follower import Follower
from millpond.log.locations.address import address_of
from millpond.model.change_history import Leaving, StoredQuery
from millpond.model.endpoints import Sink
from millpond.model.query import Query
from millpond.model.stream import Malformed, Stream
from millpond.model.windows import Sliding


class Following:
    """Stands for the runners: a view that is at a record."""

    at = 4

    def __init__(self, **others: int) -> None:
        self.others, self.first, self.added = others, self, list[Follower]()

    def add(self, follower: Follower) -> None:
        self.added.append(follower)

    def cursors(self) -> dict[str, int]:
        return {"view": self.at} | self.others


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


def letters(folder: Path) -> Stream:
    return Stream("orders", (), malformed=Malformed("dead-letter", Sink("parquet", str(folder))))


def test_a_query_that_is_added_skips_no_dead_letters_of_a_folder_that_is_behind(tmp_path: Path) -> None:
    following = Following()
    attached = AttachedSinks(following, None, "p", tmp_path, None, None, {}, {})  # type: ignore[arg-type]
    attached.add_letters([letters(tmp_path / "dead")])
    [follower] = following.added
    following.others = {follower.name: 2}
    attached.add_letters([letters(tmp_path / "dead")], 4)
    assert following.added == [follower], "it has a follower"
    assert follower.cursor() == Cursor(), "record 3 is still to be applied"


def test_dead_letters_of_a_stream_that_is_new_begin_with_its_first_query(tmp_path: Path) -> None:
    following = Following()
    attached = AttachedSinks(following, None, "p", tmp_path, None, None, {}, {})  # type: ignore[arg-type]
    attached.add_letters([letters(tmp_path / "dead")], 4)
    assert [one.cursor().n for one in following.added] == [4]
    assert folder_cursor(address_of(tmp_path / "dead")) == 4
