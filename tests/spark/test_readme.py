"""The README's first example is run as it stands, in an empty folder, against rows counted by hand."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

README = Path(__file__).parents[2] / "README.md"


def test_the_first_example_runs_as_it_stands(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "clicks"
    folder.mkdir()
    minutes = [(5, "/home", 10.0), (15, "/home", 40.0), (25, "/home", 50.0), (30, "/cart", 90.0)]
    for minute, page, seconds in minutes:
        event = {"page": page, "visitor": "v", "seconds": seconds, "ts": f"2026-01-01T12:{minute:02}:00Z"}
        path = folder / f"{minute}.json"
        path.write_text(json.dumps(event))
        os.utime(path, (minute * 60, minute * 60))  # Spark takes files in the order of their times
    found = re.search(r"<!-- run: tests/spark/test_readme.py -->\n```python\n(.*?)```", README.read_text(), re.S)
    assert found is not None
    # the JVM of all tests has its own current folder
    code = found.group(1).replace('.json("clicks")', f'.json("{folder}")')
    kept = "    kept = {n: pond.table(n).to_pylist() for n in ('visits', 'engaged')}\n"
    code = code.replace("    print(pond.table", kept + "    print(pond.table", 1)
    names: dict[str, Any] = {}
    exec(compile(code, str(README), "exec"), names)
    visits, engaged = names["kept"]["visits"], names["kept"]["engaged"]
    # four events, each in six windows of an hour every ten minutes
    assert sum(row["count"] for row in visits) == 4 * 6
    assert {(row["page"], row["mean"]) for row in engaged} == {("/home", 45.0), ("/cart", 90.0)}
    assert "document={'epoch'" in capsys.readouterr().out
