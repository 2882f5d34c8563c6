"""A rollback is priced, made and reported as a rollback, not as the promote that it undoes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from kit.simulator.changing_pond import ChangingPond
from millpond.model.change_history import StoredQuery
from millpond.model.expressions import Column
from millpond.model.query import Named
from millpond.model.selection import Selection
from millpond.model.stream import Field, Stream
from millpond.reconfigure import validate
from millpond.reconfigure.change_price import AT_ONCE, Price
from millpond.reconfigure.changes import Promote, Shadow
from millpond.reconfigure.validate import KnownPond
from millpond.service.api.messages import Changed, Priced
from millpond.service.api.service_files import Places
from millpond.service.server.gauges import Gauges
from millpond.service.server.hosted_pond import HostedPond
from millpond.service.server.log_reader import LogReader
from millpond.service.server.supervisor import Supervisor

STREAM = Stream("tx", (Field("v", "bigint"),))
ONE = Selection("one", "tx", (Named("v", Column("v", "bigint")),))


class Leading:
    """The pond of a leader, with the methods that these requests use."""

    def __init__(self, pond: ChangingPond) -> None:
        self._pond, self.priced = pond, list[str]()

    def leading(self) -> Leading:
        return self

    def __getattr__(self, kind: str) -> Any:
        make = getattr(validate, kind)
        return lambda name, who: self._pond.change(make(KnownPond(self._pond.spec, self._pond.manifest), name, who))

    def price_of(self, kind: str, name: str) -> Price:
        self.priced.append(f"{kind} {name}")
        return Price(AT_ONCE)


def test_a_rollback_is_listed_as_one(tmp_path: Path) -> None:
    (tmp_path / "pond.id").write_text("p")
    pond = ChangingPond(tmp_path, [STREAM], [ONE])
    pond.change(Shadow(StoredQuery.of(ONE)))
    pond.change(Promote("one"))
    leading, catalog = Leading(pond), LogReader(tmp_path)
    hosted = HostedPond(cast(Supervisor, leading), catalog, Gauges, Places(tmp_path))
    assert hosted.change_state("rollback", "one", "ann", True) == Priced(AT_ONCE)
    assert leading.priced == ["rollback one"]
    assert hosted.change_state("rollback", "one", "ann", False) == Changed("rollback", "one", 3)
    assert hosted.change_state("promote", "one", "bob", False) == Changed("promote", "one", 4)
    assert [event.kind for event in catalog.history(9)] == ["promote", "rollback", "promote", "shadow"]
