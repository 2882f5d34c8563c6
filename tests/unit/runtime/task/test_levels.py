"""When sections of a level are merged, compared with counting them."""

from __future__ import annotations

from millpond.runtime.task.levels import DueMerge, Levels
from millpond.runtime.task.task_values import SectionPlace


def place(name: str, level: int = 0, rows: int = 1, instead: tuple[str, ...] = ()) -> SectionPlace:
    return SectionPlace(name, "file", False, 0, 1, rows, level, instead=instead)


def places(*levels: int) -> list[SectionPlace]:
    return [place(f"{i}", level) for i, level in enumerate(levels)]


def test_nothing_is_due_before_a_level_is_full() -> None:
    assert Levels((), 2).due() is None
    assert Levels(places(0, 1, 0, 1), 3).lowest_full is None


def test_the_lowest_full_level_is_merged_into_the_next() -> None:
    found = Levels(places(1, 0, 1, 0, 1), 2)
    assert found.lowest_full == 0
    assert found.due() == DueMerge([1, 3], 1)
    assert [one.id for one in DueMerge([1, 3], 1).sections_in(found.places)] == ["1", "3"]


def test_a_merge_may_be_limited() -> None:
    assert Levels(places(0, 0, 0), 2).due(2) == DueMerge([0, 1], 1)


def test_portions_of_one_merge_count_as_one_section() -> None:
    portions = [place("a", 1, instead=("x", "y")), place("b", 1, instead=("x", "y"))]
    assert Levels(portions, 2).lowest_full is None
    assert Levels([*portions, place("c", 1)], 2).due() == DueMerge([0, 1, 2], 2)


def test_sections_that_are_too_large_stay_as_they_are() -> None:
    sizes = [place("a", rows=6), place("b", rows=5), place("c", rows=5)]
    assert Levels(sizes, 2, most_rows=10).due() == DueMerge([1, 2], 1)
    assert Levels(sizes[:2], 2, most_rows=10).due() is None


def test_the_key_that_opens_a_generation_is_never_merged_alone() -> None:
    assert Levels(places(-1, 0), 2).lowest_full is None


def test_a_level_with_room_for_one_more_section() -> None:
    assert Levels(places(0, 1, 1), 3).free_from(0) == 0
    assert Levels(places(0, 0, 1, 1), 3).free_from(0) == 2
    assert Levels((), 3).free_from(4) == 4
