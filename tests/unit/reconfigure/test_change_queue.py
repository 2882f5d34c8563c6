"""A requested change always gets an answer, and is in force only when everything that it needs was prepared."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kit.inputs.cases import STREAM
from kit.simulator.simulated_world import MemoryFolder
from millpond.errors import ChangeRefused, DiskFullError, MillpondError, PlaceError
from millpond.log.manifest import Manifest, Manifests
from millpond.log.port import Log
from millpond.log.protocol import Writer, perform
from millpond.log.records import ChangeRecord
from millpond.model.expressions import Column
from millpond.model.query import Named
from millpond.model.selection import Selection
from millpond.model.spec import PondSpec, to_json
from millpond.reconfigure import validate
from millpond.reconfigure.change_queue import ChangeQueue
from millpond.reconfigure.changes import Change
from millpond.reconfigure.validate import KnownPond

EACH = Selection("each", STREAM.name, (Named("k", Column("k", "string")),))


class Bench:
    """A log with a claim, and the queue of its driver; `attach` is called with each recorded change."""

    def __init__(self, attach: Callable[[], None] = lambda: None) -> None:
        self.log, self.manifests = Log(MemoryFolder("memory:log")), Manifests(MemoryFolder("memory:manifest"))
        self.writer = Writer("w", Manifest())
        spec = to_json(PondSpec.of((STREAM,), (EACH,), 1))
        perform(self.writer.take_over(0, "h", 1, "1", lambda _: spec), self.log, self.manifests, lambda _n: None)
        self.attach = attach
        self.attached: list[int] = []
        self.queue = ChangeQueue(self._recorded)
        self.queue.spec(self.writer.manifest)

    def _recorded(self, n: int, _change: Change, _spec: PondSpec) -> None:
        self.attach()
        self.attached.append(n)

    def work(self) -> None:
        drain = lambda: perform(self.writer.drain(), self.log, self.manifests, lambda _n: None)  # noqa: E731
        self.queue.work(drain, self._commit, "w", 0)

    def _commit(self, record: ChangeRecord) -> Manifest:
        perform(self.writer.commit(record), self.log, self.manifests, lambda _n: None)
        return self.writer.manifest


def pause(pond: KnownPond) -> Change:
    return validate.pause(pond, EACH.name)


def resume(pond: KnownPond) -> Change:
    return validate.resume(pond, EACH.name)


@pytest.mark.parametrize("error", [ChangeRefused("no"), PlaceError("gone"), ValueError("a defect")], ids=repr)
def test_a_change_that_cannot_be_made_fails_its_request(error: Exception) -> None:
    bench = Bench()

    def fail(_pond: KnownPond) -> Change:
        raise error

    done, _ = bench.queue.request(fail)
    if isinstance(error, ChangeRefused):
        bench.work()
    else:
        with pytest.raises(type(error)):
            bench.work()
    assert done.exception(0) is error and bench.writer.manifest.n == 0


@pytest.mark.parametrize("error", [DiskFullError("full"), PlaceError("gone"), OSError("a defect")], ids=repr)
def test_a_recorded_change_is_prepared_again_before_anything_follows_it(error: Exception) -> None:
    failures = [error]

    def attach() -> None:
        if failures:
            raise failures.pop()

    bench = Bench(attach)
    done, _ = bench.queue.request(pause)
    later, _ = bench.queue.request(resume)
    with pytest.raises(type(error)):
        bench.work()
    assert done.result(0) == 1 and bench.attached == []
    if isinstance(error, MillpondError):
        assert not later.done()  # the next run takes it
    spec = bench.queue.spec(bench.writer.manifest)
    assert bench.attached == [1] and EACH.name in spec.effects.paused
    bench.work()
    assert later.result(0) == 2 and bench.attached == [1, 2]
