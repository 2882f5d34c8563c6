"""The queries that are quarantined when the JVM runs out of memory: those since the newest epoch, then the last."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec

from millpond.errors import NoMemoryError
from millpond.log.locations.local_folder import LocalFolder
from millpond.log.manifest import Manifest
from millpond.log.records import EpochRecord
from millpond.model.change_history import ChangeEffects
from millpond.model.endpoints import Source
from millpond.model.expressions import Column, Foreign
from millpond.model.query import Named
from millpond.model.selection import Selection
from millpond.model.spec import PondSpec
from millpond.model.stream import Field, Stream
from millpond.reconfigure.changes import Drop, Pause
from millpond.reconfigure.probation import MEMORY, Probation, is_evaluated

ERROR = NoMemoryError("The JVM has no memory left: it has ended.", "Give it more.")
STREAM = Stream("tx", (Field("k", "string"),), Source("json", (("path", "/in"),)))


def selection(name: str, *, by_spark: bool) -> Selection:
    value = Foreign("0123456789abcdef", "reverse(k)", "string", ("k",)) if by_spark else Column("k", "string")
    return Selection(name, "tx", (Named("k", value),), None)


def pond(**added: int) -> PondSpec:
    queries = tuple(selection(name, by_spark=name != "plain") for name in ("plain", "old", "new", "newer"))
    return msgspec.structs.replace(PondSpec.of((STREAM,), queries, 1, 8), changed=ChangeEffects(added=added))


def epoch(**read: int) -> EpochRecord:
    counts = {name: {"read": count} for name, count in read.items()}
    return EpochRecord(n=3, writer="w", prev="p", at=0, spark_query="q", batch=0, start={}, end={}, counts=counts)


def halted(probation: Probation, spec: PondSpec, batch: int = 7) -> tuple[str, list[str]]:
    error, changes = probation.failed(ERROR, spec, ("q", batch))
    return str(error), [change.keywords["name"] for change in changes]  # type: ignore[attr-defined]


def test_queries_that_spark_has_not_evaluated_in_an_epoch_are_responsible(tmp_path: Path) -> None:
    spec, probation = pond(), Probation(partial(LocalFolder, tmp_path))
    probation.began(spec, None, Manifest())  # type: ignore[arg-type]
    assert halted(probation, spec)[1] == ["new", "newer", "old"]
    probation.committed(epoch(old=5, new=0, plain=5))
    reason, names = halted(probation, spec)
    assert names == ["new", "newer"] and "Spark was evaluating new, newer" in reason
    assert not (tmp_path / MEMORY).exists()


def test_without_one_on_probation_the_query_that_came_last_is_it_the_second_time(tmp_path: Path) -> None:
    spec, probation = pond(new=4, newer=9), Probation(partial(LocalFolder, tmp_path))
    probation.changed(Pause("new"))
    probation.changed(Drop("old"))
    assert halted(probation, spec) == (str(ERROR), [])
    assert halted(Probation(partial(LocalFolder, tmp_path)), spec, batch=8) == (str(ERROR), [])
    again = Probation(partial(LocalFolder, tmp_path))
    assert again.ran_out_of_memory_in(("q", 8)) and not again.ran_out_of_memory_in(("q", 7))
    assert halted(again, spec, batch=8)[1] == ["newer"]
    spec = msgspec.structs.replace(spec, changed=ChangeEffects(added={"new": 4, "newer": 9}, halted={"newer": "why"}))
    assert halted(Probation(partial(LocalFolder, tmp_path)), spec, batch=8)[1] == ["new"]


def test_a_damaged_note_is_as_none(tmp_path: Path) -> None:
    (tmp_path / MEMORY).write_text("{")
    assert halted(Probation(partial(LocalFolder, tmp_path)), pond()) == (str(ERROR), [])
    assert halted(Probation(partial(LocalFolder, tmp_path)), pond())[1] == ["old"]  # the last one


def test_what_spark_evaluates(tmp_path: Path) -> None:
    assert [is_evaluated(query, (STREAM,)) for query in pond().all_queries] == [True, True, True, False]


def test_a_query_that_is_also_read_by_another_one_is_quarantined_once(tmp_path: Path) -> None:
    #   `new` reads the rows of `old`, `newer` those of both, and all three are on probation
    rows = [Stream(f"of-{name}", (Field("k", "string"),), rows_of=name) for name in ("old", "new")]
    first = selection("old", by_spark=True)
    second = msgspec.structs.replace(selection("new", by_spark=True), stream="of-old")
    third = msgspec.structs.replace(selection("newer", by_spark=True), stream="of-new")
    fourth = msgspec.structs.replace(selection("late", by_spark=True), stream="of-old")
    spec = PondSpec.of((STREAM, *rows), (first, second, third, fourth), 1, 8)
    probation = Probation(partial(LocalFolder, tmp_path))
    probation.began(spec, None, Manifest())  # type: ignore[arg-type]
    names = halted(probation, spec)[1]
    assert sorted(names) == ["late", "new", "newer", "old"]
    readers_first = [("newer", "new"), ("new", "old"), ("late", "old")]
    assert all(names.index(reader) < names.index(read) for reader, read in readers_first)
