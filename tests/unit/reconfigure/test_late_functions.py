"""Which queries end if a function does not return: those that use the expression or the column that calls it."""

from __future__ import annotations

import msgspec
import pytest

from millpond.log.manifest import Manifest
from millpond.log.records import EpochRecord
from millpond.model.change_history import ChangeEffects
from millpond.model.endpoints import Source
from millpond.model.expressions import Column, Foreign
from millpond.model.query import Named
from millpond.model.selection import Selection
from millpond.model.spec import PondSpec
from millpond.model.stream import Derivation, Field, Stream
from millpond.plan.groups.build import build_plan
from millpond.reconfigure.late_functions import LateFunctions, owner_in
from millpond.runtime.scheduling.committed_epoch import CommittedEpoch

KEY, TEXT = "0123456789abcdef", "The function f did not answer within 10 s"
FIELDS = (Field("k", "string"), Field("x", "string"))
BASE = Stream("tx", FIELDS, Source("json", (("path", "/in"),)))
MADE = Stream("both", FIELDS, made_of=Derivation("tx, tx", ("tx",), "d"))


def reads(name: str, column: str, stream: str = "both") -> Selection:
    return Selection(name, stream, (Named("v", Column(column, "string")),), None)


QUERIES = (
    Selection("calling", "tx", (Named("v", Foreign(KEY, "f(k)", "string", ("k",))),), None),
    reads("plain", "k", "tx"), reads("of_k", "k"), reads("of_x", "x"), reads("of_x@shadow", "x"),
    reads("of_x@2", "x"), Selection("over_x", "both", (Named("v", Foreign("f" * 16, "-x", "string", ("x",))),), None),
    reads("fine", "k"), reads("fine@shadow", "x"),
)  # fmt: skip
CHANGED = ChangeEffects(shadows={"of_x": "of_x@shadow", "fine": "fine@shadow"}, replaced={"of_x@2": "of_x"})
SPEC = msgspec.structs.replace(PondSpec.of((BASE, MADE), QUERIES, 1, 8), changed=CHANGED)
RECORD = EpochRecord(n=3, writer="w", prev="p", at=0, spark_query="q", batch=0, start={}, end={}, counts={})
EPOCH = CommittedEpoch(RECORD, (BASE, MADE), SPEC, build_plan(QUERIES[:1]), Manifest(), 0, 0.1, 0.1)


class Calls:
    """The late calls of a pond, and the changes that follow from them."""

    def __init__(self) -> None:
        self.now: dict[tuple[str, str], int] = {}
        self.watch = LateFunctions(lambda: self.now)

    def epoch(self, owner: str, late: int) -> set[str]:
        self.now[owner, TEXT] = self.now.get((owner, TEXT), 0) + late
        self.watch.committed(EPOCH)
        makes = self.watch.changes()
        assert self.watch.ended() == bool(makes)
        assert all(one.keywords["why"].startswith(f"[MP-FUNCTION] {TEXT}, ") for one in makes if _halts(one))
        return {f"{one.func.__name__} {one.keywords['name']}" for one in makes}  # type: ignore[attr-defined]


def _halts(make: object) -> bool:
    return make.func.__name__ == "halt"  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(
    ("owner", "ended"),
    [
        (KEY, {"halt calling"}),
        (owner_in("both", "x"), {"halt of_x", "halt over_x", "discard fine"}),
        (owner_in("both", "k"), {"halt of_k", "halt fine"}),
        ("both", {"halt of_k", "halt of_x", "halt over_x", "halt fine"}),
        (owner_in("other", "x"), set()),
    ],
)
def test_the_owner_of_late_calls_decides_which_queries_end(owner: str, ended: set[str]) -> None:
    calls = Calls()
    assert calls.epoch(owner, 2) == set()
    assert calls.epoch(owner, 1) == ended


def test_an_epoch_without_a_late_call_restarts_the_count() -> None:
    calls = Calls()
    assert [calls.epoch(KEY, late) for late in (2, 0, 2)] == [set()] * 3
    assert calls.epoch(KEY, 1) == {"halt calling"}
