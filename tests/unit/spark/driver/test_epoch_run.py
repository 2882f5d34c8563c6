"""States of an epoch: the table agrees with the steps, and every end is reached with a log and without Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest

from millpond import faults
from millpond.log.locations.local_folder import LocalFolder
from millpond.log.manifest import Manifests, load
from millpond.log.port import Log
from millpond.log.protocol import TICK, Writer
from millpond.log.records import EpochRecord, Offsets, Receipt, decode
from millpond.model.endpoints import Source
from millpond.model.spec import PondSpec, from_json, to_json
from millpond.model.stream import Field, Stream
from millpond.placement.slots import even_owners
from millpond.reconfigure.apply import setting_of
from millpond.runtime.fold.fold import fold
from millpond.runtime.task.column_layout import ReadLayout, StreamLayout
from millpond.runtime.task.task_values import FoldTask, GatherTask
from millpond.spark.driver.advisers import Advisers
from millpond.spark.driver.epoch_run import (
    TRANSITIONS,
    Active,
    Appended,
    Assembled,
    Begun,
    Computed,
    Deferred,
    Ended,
    EpochRunner,
    Planned,
    Published,
    Repeated,
    Skipped,
)
from millpond.spark.driver.epochs import Epoch
from millpond.spark.driver.log_head import LogHead
from millpond.spark.reading.intake import Intake
from millpond.state.ports.files import Files

FRAME: Any = object()
"""Stands for Spark's DataFrame, which only the job reads."""


class Failed(Exception):
    """What a job or an observer raises."""


class Bench:
    """A pond of one stream without queries, one instance and a checkpoint that the test writes."""

    def __init__(self, folder: Path, token: str = "driver") -> None:
        self.folder, self.checkpoint = folder, folder / "spark"
        stream = Stream("tx", (Field("id", "bigint"),), Source("rate", ()))
        spec = PondSpec.of((stream,), (), 1, 4)
        setting = setting_of("pond", folder, folder / "cache", spec, even_owners(4, 1))
        setting = setting._replace(layout=ReadLayout((StreamLayout("tx", ()),)))
        self.log, manifests = Log(LocalFolder(folder / "log")), Manifests(LocalFolder(folder / "manifest"))
        writer = Writer(token, load(self.log, manifests))
        session: Any = SimpleNamespace(conf={}, sparkContext=SimpleNamespace(master="local[2]"))
        advisers = Advisers(session, setting.streams)
        self.head = LogHead(
            self.log, manifests, writer, setting, lambda _n: None, lambda manifest: from_json(manifest.spec),
            advisers.idle,
        )  # fmt: skip
        self.head.perform(writer.take_over(0, "host", 1, "0", lambda _manifest: to_json(spec)))
        self.epochs: list[Epoch] = []
        self.jobs, self.job_fails, self.observer_fails = 0, False, False
        self.runner = EpochRunner(
            self.head, advisers, Intake(), self._job, lambda: 0, lambda _now: None, self._observe
        )  # fmt: skip
        put(self.checkpoint / "metadata", '{"id":"q"}')

    def batch(self, number: int, offset: str, tick: str = "1") -> Ended:
        """Run the epoch of a batch that ends at `offset`."""
        offsets = {"tx": offset, TICK: tick}
        lines = ["v2", '{"batchTimestampMs":5}', *(f"{name}:{text}" for name, text in offsets.items())]
        put(self.checkpoint / "offsets" / str(number), "\n".join(lines))
        return self.runner.run(self.runner.plan_batch(FRAME, number, self.checkpoint, lambda: 0))

    def _job(self, begun: Begun, gathering: GatherTask, task: FoldTask) -> list[tuple[Receipt, bytes]]:
        assert gathering.instances == task.instances == 1 and begun.run.n == task.number
        self.jobs += 1
        if self.job_fails:
            raise Failed
        return [fold(task, 0, [], f"{task.writer}-1", Files(self.folder))]

    def _observe(self, epoch: Epoch) -> None:
        self.epochs.append(epoch)
        if self.observer_fails:
            raise Failed

    def read(self) -> Offsets:
        return {name: text for name, text in self.head.manifest.offsets.items() if name != TICK}


def put(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_table_has_every_state_and_leads_from_the_plan_to_an_end() -> None:
    assert set(TRANSITIONS) == set(get_args(Active))
    reached: list[type] = [Planned]
    for state in reached:
        after = TRANSITIONS.get(state, ())
        assert not {*after} & {*reached}.difference(get_args(Ended)), "an epoch never returns to an earlier state"
        reached += [one for one in after if one not in reached]
    assert set(reached) == {*get_args(Active), *get_args(Ended)}


@pytest.mark.parametrize(("state", "step"), [
    (Planned, "_begin"), (Begun, "_compute"), (Computed, "_assemble"), (Assembled, "_append"), (Appended, "_publish"),
])  # fmt: skip
def test_the_table_lists_what_a_step_returns(state: type[Active], step: str) -> None:
    returned = get_type_hints(getattr(EpochRunner, step))["return"]
    assert set(TRANSITIONS[state]) == set(get_args(returned) or (returned,))


def test_a_transition_that_is_not_in_the_table_is_a_defect(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = bench.runner.plan_without_input()
    monkeypatch.setattr(bench.runner, "_begin", lambda _planned: Skipped())
    assert bench.runner.run(planned) == Skipped()
    monkeypatch.setattr(bench.runner, "_begin", lambda _planned: Published(None))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="from Planned to Published"):
        bench.runner.run(planned)


def test_a_batch_is_published_once(bench: Bench) -> None:
    ended = bench.batch(0, "5")
    assert isinstance(ended, Published) and [epoch.record for epoch in bench.epochs] == [ended.record]
    assert bench.read() == {"tx": "5"} and bench.log.last() == ended.record.n == 1
    assert bench.batch(0, "5") == Repeated()
    assert (bench.jobs, len(bench.epochs), bench.log.last()) == (1, 1, 1)


def test_a_tick_alone_is_skipped(bench: Bench) -> None:
    bench.batch(0, "5")
    assert bench.batch(1, "5", tick="2") == Skipped()
    assert (bench.jobs, bench.log.last()) == (1, 1)


def test_a_batch_that_lacks_a_stream_is_deferred(bench: Bench) -> None:
    layout = bench.head.setting.layout
    bench.head.setting = bench.head.setting._replace(layout=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("millpond.spark.driver.epoch_run.check_names", lambda *_names: None)
        assert bench.batch(0, "5") == Deferred()
    assert (bench.jobs, bench.log.last()) == (0, 0)
    bench.head.setting = bench.head.setting._replace(layout=layout)
    assert isinstance(bench.batch(0, "5"), Published)


def test_a_failed_job_leaves_the_log_as_it_was(bench: Bench) -> None:
    bench.job_fails = True
    with pytest.raises(Failed):
        bench.batch(0, "5")
    assert (bench.read(), bench.log.last()) == ({}, 0)
    bench.job_fails = False
    assert isinstance(bench.batch(0, "5"), Published)


def test_an_epoch_that_fails_after_its_append_is_committed(bench: Bench) -> None:
    bench.observer_fails = True
    with pytest.raises(Failed):
        bench.batch(0, "5")
    assert bench.log.last() == 1
    assert bench.batch(0, "5") == Repeated()
    assert len(bench.epochs) == 1


def test_an_epoch_without_input_keeps_the_offsets(bench: Bench) -> None:
    bench.batch(0, "5")
    ended = bench.runner.run(bench.runner.plan_without_input(level=0))
    assert isinstance(ended, Published) and ended.record.drained
    assert ended.record.start == ended.record.end == bench.head.manifest.offsets


STEPS = (
    "begin.start", "begin.decided", "epoch.before_job", "fold.before_delta", "fold.return", "epoch.after_job",
    "commit.before_append", "commit.after_append", "commit.after_announce",
)  # fmt: skip


@pytest.mark.parametrize("other_driver", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_batch_is_committed_once_wherever_its_epoch_breaks_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, other_driver: bool
) -> None:
    bench = Bench(tmp_path)
    bench.batch(0, "5")
    (tmp_path / "faults").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(faults, "_faults", faults.Faults(f"{step}:1:raise", tmp_path / "faults"))
        with pytest.raises(faults.FaultError):
            bench.batch(1, "7")
    is_in_log = step in ("commit.after_append", "commit.after_announce")
    after = Bench(tmp_path, "another") if other_driver else bench
    jobs = after.jobs
    assert isinstance(after.batch(1, "7"), Repeated if is_in_log else Published)
    assert after.jobs - jobs == (0 if is_in_log else 1)
    assert after.read() == {"tx": "7"} and after.batch(1, "7") == Repeated()
    records = (decode(after.log.read(n) or b"").record for n in range((after.log.last() or 0) + 1))
    assert [one.batch for one in records if isinstance(one, EpochRecord)] == [0, 1]
