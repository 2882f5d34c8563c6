"""The epochs of a service as lines of its log."""

from __future__ import annotations

import logging

import pytest

from millpond.log.records import EpochRecord
from millpond.service.server.epoch_lines import EpochLines
from millpond.spark.driver.epochs import Epoch

COUNTS = {"*": {"events": 9}, "visits": {"rows": 2, "late": 1, "dead": 3}, "silent": {"read": 4}}
RECORD = EpochRecord(n=7, writer="w", prev="p", at=1, spark_query="q", batch=3, start={}, end={}, counts=COUNTS)
EPOCH = Epoch(RECORD, 0.25)


def test_epochs_are_at_most_one_line_of_text_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    now = 0
    lines = EpochLines(lambda: now)
    caplog.set_level(logging.INFO)
    idle = EpochRecord(n=8, writer="w", prev="p", at=1, spark_query="q", batch=3, start={}, end={}, counts={})
    for time, one in ((0, EPOCH), (5_000_000, EPOCH), (9_000_000, Epoch(idle, 9.0)), (11_000_000, EPOCH)):
        now = time
        lines.add(one)
    lines.add(Epoch(idle, 1.0))
    assert caplog.messages == [
        "epoch 7: 9 events in 0.2 s; rows: visits 2",
        "epoch 7: 18 events in 0.5 s; rows: visits 4",
    ]
