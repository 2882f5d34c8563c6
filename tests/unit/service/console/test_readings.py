"""Values that all pages of the console share are read as rarely as their cost demands."""

from __future__ import annotations

import asyncio

import pytest

from millpond.service.console import readings
from millpond.service.console.readings import Shared


def test_a_value_that_is_expensive_to_read_is_read_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    now, cpu, reads = 0, 0, list[int]()

    def read() -> int:
        nonlocal cpu
        cpu += 100_000
        reads.append(now)
        return now

    monkeypatch.setattr(readings, "lap_us", lambda: now)
    monkeypatch.setattr(readings, "cpu_us", lambda: cpu)

    async def visit() -> None:
        nonlocal now
        shared = Shared(read, 4.0)
        for second in range(30):
            now = second * 1_000_000
            await shared()
            if second == 15:
                shared.forget()

    asyncio.run(visit())
    assert reads == [0, 5_000_000, 16_000_000, 27_000_000], "0.1 s of CPU in 10 s, except at first and after a change"
