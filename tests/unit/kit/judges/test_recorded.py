"""Spark runs a query exactly if its answer is not the recorded one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.judges.recorded import RecordedAnswers


class Judge:
    """Answers with given rows, and counts how often."""

    def __init__(self, rows: list[str]) -> None:
        self.rows, self.runs = rows, 0

    def __call__(self) -> list[str]:
        self.runs += 1
        return self.rows


def recorded(folder: Path, *inputs: object) -> RecordedAnswers:
    return RecordedAnswers("test_this.py", *inputs, folder=folder)


def test_spark_runs_a_query_if_text_input_or_rows_are_not_the_recorded_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = Judge(["1", "2"])
    monkeypatch.setenv("MILLPOND_GOLDEN", "write")
    recorded(tmp_path, 7).answer("q", "SELECT a", ["rows of a pond"], judge)
    monkeypatch.delenv("MILLPOND_GOLDEN")
    known = recorded(tmp_path, 7)
    assert known.answer("q", "SELECT a", ["1", "2"], judge) == ["1", "2"] and judge.runs == 1
    assert known.answer("q", "SELECT a", ["1", "3"], judge) == ["1", "2"] and judge.runs == 2
    for other, name, query in (
        (known, "q", "SELECT b"),
        (known, "p", "SELECT a"),
        (recorded(tmp_path), "q", "SELECT a"),
    ):
        with pytest.raises(AssertionError, match=r"MILLPOND_GOLDEN=write pytest tests/spark/test_this\.py"):
            other.answer(name, query, ["1", "2"], judge)
    assert judge.runs == 5


def test_a_wrong_record_is_found_by_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_GOLDEN", "write")
    known = recorded(tmp_path)
    known.answer("q", "SELECT a", ["1"], Judge(["1"]))
    monkeypatch.setenv("MILLPOND_GOLDEN", "check")
    assert known.answer("q", "SELECT a", ["1"], Judge(["2"])) == ["2"]
    assert known.answer("q", "SELECT a", ["1"], right := Judge(["1"])) == ["1"] and right.runs == 1


def test_how_pyarrow_represents_utc_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge(["datetime(2026, 1, 1, tzinfo=<UTC>)"])
    monkeypatch.setenv("MILLPOND_GOLDEN", "write")
    known = recorded(tmp_path)
    known.answer("q", "SELECT a", judge.rows, judge)
    monkeypatch.delenv("MILLPOND_GOLDEN")
    shown = ["datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo(key='UTC'))"]
    assert known.answer("q", "SELECT a", shown, judge) == shown and judge.runs == 1
