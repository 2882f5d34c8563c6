"""The log of a command as text, and as JSON: from a command, an epoch and an exception."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from millpond.clock import now_us
from millpond.control.commands.command_log import (
    LEVELS,
    JsonLines,
    TextLines,
    is_json,
    log_epoch,
    log_writer,
    write_json,
)
from millpond.log.records import EpochRecord
from millpond.spark.driver.epochs import Epoch


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """Loggers as in a new process; what a test does to them is undone. Services in this process may have set them."""
    found = [logging.getLogger(name) for name in (*LEVELS, "millpond.pond", "millpond.service")]
    before = [(logger, logger.handlers[:], logger.level) for logger in found]
    for logger in found:
        logger.handlers[:] = []
        logger.setLevel(logging.NOTSET)
    yield
    for logger, handlers, level in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)


def epoch() -> Epoch:
    counts = {"*": {"events": 9}, "visits": {"rows": 2, "late": 1, "dead": 3}, "silent": {"read": 4}}
    record = EpochRecord(n=7, writer="w", prev="p", at=1, spark_query="q", batch=3, start={}, end={}, counts=counts)
    return Epoch(record, 0.25)


def test_a_line_of_a_service_has_time_and_level_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    log_writer("millpond.service")("Leading.")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ INFO Leading\.\n", capsys.readouterr().err)
    logging.getLogger("millpond.service").handlers[:] = []
    write_json()
    log_writer("millpond.service")("Failing.", logging.WARNING)
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["logger"], line["message"]) == ("WARNING", "millpond.service", "Failing.")


def test_an_epoch_and_a_failure_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    log_epoch(epoch())
    assert capsys.readouterr().err == "" and not is_json()
    write_json()
    write_json()
    log_epoch(epoch())
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("millpond.service").exception("a request %s", "failed")
    logging.getLogger("uvicorn.error").info("not shown")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first["level"] == "INFO" and first["rows"] == {"visits": 2}
    assert (first["epoch"], first["events"], first["seconds"], first["late"], first["dead"]) == (7, 9, 0.25, 1, 3)
    at = datetime.fromisoformat(first["time"].replace("Z", "+00:00"))
    assert abs(at.timestamp() * 1e6 - now_us()) < 60e6 and at.tzinfo == timezone.utc
    assert (second["level"], second["logger"], second["message"]) == ("ERROR", "millpond.service", "a request failed")
    assert "ValueError: two\nlines" in second["trace"]


def test_a_command_that_fails_logs_its_error_as_json_as_the_file_of_settings_says(tmp_path: Path) -> None:
    (tmp_path / "millpond.toml").write_text('file = "no.sql"\nlog-format = "json"\n')
    words = [sys.executable, "-m", "millpond", "run"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    line = json.loads(done.stderr)
    assert done.returncode == 1 and line["level"] == "ERROR" and "[MP-TYPE] no.sql cannot be read" in line["message"]


def test_fields_do_not_hide_the_time_of_a_record() -> None:
    record = logging.LogRecord("millpond.pond", logging.INFO, "", 1, "it", (), None)
    record.created = 0.0
    assert JsonLines().format(record).startswith('{"time":"1970-01-01T00:00:00.000Z","level":"INFO"')
    assert TextLines().format(record) == "1970-01-01 00:00:00Z INFO it"
