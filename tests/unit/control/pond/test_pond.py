"""The facade `Pond`: its methods are those of its parts, with their signatures and texts."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from millpond.control.pond.add import QueryAdditions
from millpond.control.pond.change import QueryChanges
from millpond.control.pond.declare import Declarations
from millpond.control.pond.lifetime import Lifetime
from millpond.control.pond.placement import BucketPlacement
from millpond.control.pond.pond import Pond
from millpond.control.pond.report import Reports
from millpond.errors import QueryError
from millpond.followers.sinks.in_process import MemoryTables

PARTS = {
    "_declarations": Declarations, "_lifetime": Lifetime, "_additions": QueryAdditions, "_changes": QueryChanges,
    "_placement": BucketPlacement, "_reports": Reports,
}  # fmt: skip


class Recorder:
    """Stands for a part, and notes which of its attributes a method reads first."""

    def __getattr__(self, name: str) -> Any:
        raise LookupError(name)


def methods() -> list[str]:
    return [name for name, _ in inspect.getmembers(Pond, inspect.isfunction) if not name.startswith("_")]


@pytest.mark.parametrize("name", methods())
def test_a_public_method_has_a_text_and_named_arguments(name: str) -> None:
    method = getattr(Pond, name)
    assert method.__doc__ and method.__doc__[0].isupper()
    kinds = {one.kind for one in [*inspect.signature(method).parameters.values()][1:]}
    assert inspect.Parameter.VAR_KEYWORD not in kinds, "arguments are not hidden behind **kwargs"


def test_a_method_of_a_part_is_that_of_the_part() -> None:
    found = {}
    for part, kind in PARTS.items():
        for name in methods():
            if getattr(Pond, name).__doc__ == getattr(getattr(kind, name, None), "__doc__", ""):
                found[name] = part
                assert inspect.signature(getattr(Pond, name)) == inspect.signature(getattr(kind, name))
    wanted = {"stream": "_declarations", "run": "_lifetime", "add": "_additions", "pause": "_changes"}
    assert (wanted | {"scale": "_placement", "why": "_reports"}).items() <= found.items()


def test_a_call_reaches_the_part_with_its_arguments() -> None:
    pond, requested = Pond.__new__(Pond), list[Any]()
    pond._changes = QueryChanges.__new__(QueryChanges)
    pond._changes._requests = SimpleNamespace(request=requested.append)  # type: ignore[assignment]
    pond.pause("spend", who="ann")
    (make,) = requested
    with pytest.raises(LookupError, match="spec"):
        make(Recorder())


def test_what_is_not_open_has_no_rows_and_no_costs() -> None:
    pond = Pond.__new__(Pond)
    pond._lifetime = SimpleNamespace(opened=None)  # type: ignore[assignment]
    pond._changes = QueryChanges.__new__(QueryChanges)
    pond._changes._lifetime = pond._lifetime
    assert pond.costs() == {}
    named = (lambda: pond.table("spend"), lambda: pond.late_rows("spend"), lambda: pond.lookup("spend", 1))
    for request in (*named, pond.manifest, pond.sharing):
        with pytest.raises(QueryError, match=r"not open.*pond\.start\(\)"):
            request()


def test_a_name_that_no_query_has_is_an_error_with_similar_names() -> None:
    pond = Pond.__new__(Pond)
    pond._declarations = SimpleNamespace(queries={"spend": None})  # type: ignore[assignment]
    followers = SimpleNamespace(tables=MemoryTables(), late_tables=MemoryTables())
    pond._lifetime = SimpleNamespace(opened=SimpleNamespace(followers=followers))  # type: ignore[assignment]
    for request in (pond.table, pond.late_rows, pond.lookup):
        with pytest.raises(QueryError, match="no query 'spent'") as refused:
            request("spent")
        assert refused.value.cure.startswith("Did you mean spend?")
