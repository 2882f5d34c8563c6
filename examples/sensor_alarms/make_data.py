"""Writes the folder `readings`: three sensors for half an hour, each every 20 seconds; the same each time.

The boiler gets too hot, the freezer's sensor gets stuck, and readings arrive up to 90 seconds late.
"""

from __future__ import annotations

import json
import math
import os
import random
from datetime import datetime, timedelta, timezone
from pathlib import Path

START = datetime(2026, 3, 2, 8, tzinfo=timezone.utc)


def celsius(sensor: str, minute: float, noise: float) -> float:
    """What a sensor says."""
    if sensor == "boiler":
        return round(70 + 18 * math.sin(minute / 30 * math.pi) + noise, 1)
    if sensor == "freezer":
        return -18.0 if minute >= 10 else round(-18 + noise, 1)
    return round(20 + noise, 1)


def write_readings(folder: Path) -> None:
    """Three files in the order of arrival."""
    chance = random.Random(31)
    arrived = []
    for second in range(0, 1800, 20):
        for sensor in ("boiler", "freezer", "hall"):
            reading = celsius(sensor, second / 60, chance.random() - 0.5)
            ts = (START + timedelta(seconds=second)).isoformat()
            arrived.append((second + chance.random() * 90, {"sensor": sensor, "celsius": reading, "ts": ts}))
    arrived.sort(key=lambda pair: pair[0])
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(3):
        file = folder / f"readings-{number}.json"
        file.write_text("\n".join(json.dumps(reading) for _, reading in arrived[number * 90 : number * 90 + 90]))
        os.utime(file, (number, number))  # Spark reads files in the order of these times


if __name__ == "__main__":
    write_readings(Path("readings"))
