"""The epochs of a service as lines of its log."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from millpond.log.records import EpochRecord
from millpond.service.api.serve_options import Options
from millpond.service.api.service_files import Leader, Places
from millpond.service.server.epoch_lines import EpochLines
from millpond.service.server.leadership import LeadershipHints
from millpond.service.server.log_reader import LogReader
from millpond.service.server.serve_process import _Process
from millpond.spark.driver.epochs import Epoch

IDLE = EpochRecord(n=8, writer="w", prev="p", at=1, spark_query="q", batch=3, start={}, end={}, counts={})
COUNTS = {"*": {"events": 9}, "visits": {"rows": 2, "late": 1, "dead": 3}, "silent": {"read": 4}}
RECORD = EpochRecord(n=7, writer="w", prev="p", at=1, spark_query="q", batch=3, start={}, end={}, counts=COUNTS)
EPOCH = Epoch(RECORD, 0.25)


def test_epochs_are_at_most_one_line_of_text_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    now = 0
    lines = EpochLines(lambda: now)
    caplog.set_level(logging.INFO)
    for time, one in ((0, EPOCH), (5_000_000, EPOCH), (9_000_000, Epoch(IDLE, 9.0)), (11_000_000, EPOCH)):
        now = time
        lines.add(one)
    lines.add(Epoch(IDLE, 1.0))
    assert caplog.messages == [
        "epoch 7: 9 events in 0.2 s; rows: visits 2",
        "epoch 7: 18 events in 0.5 s; rows: visits 4",
    ]


def test_the_last_epochs_of_a_burst_are_logged_when_their_line_is_due(caplog: pytest.LogCaptureFixture) -> None:
    now = 0
    lines = EpochLines(lambda: now)
    caplog.set_level(logging.INFO)
    lines.add(EPOCH)
    lines.add(EPOCH)
    for time, logged in ((9_000_000, 1), (10_000_000, 2), (11_000_000, 2), (30_000_000, 2)):
        now = time
        lines.log_due()
        assert caplog.messages == ["epoch 7: 9 events in 0.2 s; rows: visits 2"] * logged


def test_the_last_epochs_before_the_end_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    lines = EpochLines(lambda: 0)
    caplog.set_level(logging.INFO)
    lines.log_remaining()
    for one in (EPOCH, EPOCH, Epoch(IDLE, 1.0), EPOCH):
        lines.add(one)
    lines.log_remaining()
    lines.log_remaining()
    assert caplog.messages == [
        "epoch 7: 9 events in 0.2 s; rows: visits 2",
        "epoch 7: 18 events in 0.5 s; rows: visits 4",
    ]


def test_the_process_logs_lines_that_are_due_while_spark_responds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0
    options = Options("", tmp_path, "local[1]", "1g", "lmdb", None, None, 10.0)
    hint = LeadershipHints(Places(tmp_path), Leader("http://h", 1, "me"))
    process = _Process(options, LogReader(tmp_path), hint, lambda _: None, lambda: None, 0)
    process.lines = EpochLines(lambda: now)
    caplog.set_level(logging.INFO)
    process._committed(EPOCH)
    process._committed(EPOCH)
    now = 10_000_000
    process._alive(None)
    assert len(caplog.messages) == 2
