"""Functions that work, raise, hang, crash or return wrong results: a failure names its function and no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from millpond.clock import lap_us
from millpond.errors import UserFunctionError, from_text
from millpond.model.functions import UserFunction
from millpond.runtime.functions import host as hosts
from millpond.runtime.functions import process
from millpond.runtime.functions.host import FunctionHost

Declare = Callable[..., UserFunction]

EVENTS = pa.table({"key": np.repeat([1, 3, 4], 2), "value": np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])})
"""Two events for each of the keys 1, 3 and 4; the first value of key 3 is 3."""


@pytest.mark.parametrize(("attribute", "kind", "form", "expected"), [
    ("median", "holistic", "arrow", [None, 1.5, None, 3.5, 5.5]),
    ("median_of_numpy", "holistic", "numpy", [None, 1.5, None, 3.5, 5.5]),
    ("sums", "grouped", "arrow", [None, 3.0, None, 7.0, 11.0]),
    ("Mean", "mergeable", "arrow", [None, 1.5, None, 3.5, 5.5]),
])  # fmt: skip
def test_each_kind_answers_a_value_per_key(
    host: FunctionHost, declare: Declare, attribute: str, kind: str, form: str, expected: list[float | None]
) -> None:
    answer = host.call(declare(attribute, kind, form=form), EVENTS, 5)
    assert answer.type == pa.float64()
    assert answer.to_pylist() == expected


def test_a_series_of_polars_is_handed_over(host: FunctionHost, declare: Declare) -> None:
    function = declare("median_of_polars", form="polars")
    assert host.call(function, EVENTS, 5).to_pylist() == [None, 1.5, None, 3.5, 5.5]


def test_a_function_takes_several_columns(host: FunctionHost, declare: Declare) -> None:
    table = EVENTS.append_column("weight", pa.array([1.0, 1, 2, 2, 3, 3]))
    function = declare("weighted", takes=("double", "double"))
    assert host.call(function, table, 5).to_pylist() == [None, 3.0, None, 14.0, 33.0]


@pytest.mark.parametrize(("attribute", "kind", "values", "expected"), [
    ("longest", "string", [None, "a", "bb", "c", "", None], [None, "a", None, "bb", ""]),
    ("exact", "decimal(10,2)", [Decimal(n) / 4 for n in range(6)], [None, Decimal("0.25"), None, Decimal("1.25"),
                                                                    Decimal("2.25")]),
])  # fmt: skip
def test_types_other_than_doubles(
    host: FunctionHost, declare: Declare, attribute: str, kind: str, values: list[object], expected: list[object]
) -> None:
    function = declare(attribute, takes=(kind,), returns=kind)
    table = EVENTS.set_column(1, "value", pa.array(values, hosts.arrow_type(kind)))
    assert host.call(function, table, 5).to_pylist() == expected


def test_columns_have_names_whatever_they_were_called(host: FunctionHost, declare: Declare) -> None:
    table = EVENTS.append_column("value", EVENTS["value"]).rename_columns(["slot", "a", "a"])
    function = declare("names", "grouped", takes=("double", "double"), returns="string")
    assert host.call(function, table, 5)[1].as_py() == "key value value_2"


def test_no_function_is_called_for_nothing(host: FunctionHost, declare: Declare) -> None:
    assert host.call(declare("leaves"), EVENTS[:0], 3).to_pylist() == [None] * 3
    cells = pa.array([[], [7]], pa.list_(pa.int64()))
    assert host.call(declare("Mean", "mergeable"), EVENTS, 2, cells).to_pylist() == [None, None]


def test_overlapping_windows_are_merged_of_cells(host: FunctionHost, declare: Declare) -> None:
    cells = pa.array([[1, 3], [], [3, 4], [1, 3, 4], [9, 4]], pa.list_(pa.int64()))
    joined = host.call(declare("Joined", "mergeable", returns="string"), EVENTS, 5, cells)
    assert joined.to_pylist() == ["1,2,3,4,", None, "3,4,5,6,", "1,2,3,4,5,6,", "5,6,"]


FAILURES = [
    ("raises", "holistic", {}, "raised ValueError: three is too many at sample_functions.py:", 3),
    ("quits", "holistic", {}, "raised SystemExit: 1", 3),
    ("hangs", "holistic", {"deadline_ms": 2500}, "did not answer within 2.5 s", 3),
    ("sleeps", "holistic", {"deadline_ms": 4000}, "did not answer within 4 s", 3),
    ("leaves", "holistic", {}, "ended its process with status 5 saying: so long", 3),
    ("crashes", "holistic", {}, "crashed (SIGSEGV)", 3),
    ("starts_another", "holistic", {"deadline_ms": 4000}, "", 1),
    ("hoards", "holistic", {}, "needs more than 256 MB of memory", 3),
    ("hoards_numpy", "holistic", {}, "needs more than 256 MB of memory", 3),
    ("wrong_type", "holistic", {}, "gave 'three' (str) for a double", 3),
    ("too_few", "grouped", {}, "gave 2 values for 3 keys", None),
    ("missing", "holistic", {}, "has no attribute 'missing'", None),
    ("NO_FUNCTION", "holistic", {}, "is no holistic function", None),
    ("Unfinished", "mergeable", {}, "is no mergeable function: it lacks update, merge, finish", None),
]


@pytest.mark.parametrize(("attribute", "kind", "rest", "what", "row"), FAILURES, ids=[case[0] for case in FAILURES])
def test_a_failure_is_reported_with_its_key(
    host: FunctionHost, declare: Declare, attribute: str, kind: str, rest: dict[str, int], what: str, row: int | None
) -> None:
    function = declare(attribute, kind, **rest)
    with pytest.raises(UserFunctionError) as caught:
        host.call(function, EVENTS, 5)
    assert what in str(caught.value)
    assert caught.value.row == row
    assert str(caught.value).startswith(f"[MP-FUNCTION] The function {function.name}@1 ")
    assert "\n" not in str(caught.value)
    assert isinstance(from_text(str(caught.value)), UserFunctionError)
    assert host.call(declare("median"), EVENTS, 5).to_pylist() == [None, 1.5, None, 3.5, 5.5], "others go on"


def test_the_deadline_of_a_holistic_function_is_for_one_key(declare: Declare, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, began_us = declare("naps"), lap_us()  # at least 50 ms a key
    table = pa.table({"key": np.arange(8), "value": np.ones(8)})
    with FunctionHost() as host:
        assert host.call(slow, table, 8).to_pylist() == [1.0] * 8
        child = host._children[slow][0]
        last_us = child._progress[1]
        assert last_us >= began_us + 7 * 50_000, "the eighth key has a time of its own"
        monkeypatch.setattr(process, "lap_us", lambda: last_us + 1_000_000)
        assert child._remaining_seconds(began_us, 3000) == 2.0


@pytest.mark.usefixtures("new_interpreters")
def test_after_a_failure_a_new_process_answers(declare: Declare) -> None:
    with FunctionHost() as host:
        function = declare("leaves")
        fine = EVENTS.set_column(1, "value", pa.array([1.0] * 6))
        for _ in range(2):
            assert host.call(function, fine, 5).to_pylist() == [None, 1.0, None, 1.0, 1.0]
            with pytest.raises(UserFunctionError, match="status 5"):
                host.call(function, EVENTS, 5)


@pytest.mark.parametrize("attribute", ["leaks", "is_killed"])
def test_a_process_that_dies_or_has_leaked_its_memory_is_replaced_and_the_call_repeated(
    declare: Declare, attribute: str
) -> None:
    with FunctionHost() as host:
        function = declare(attribute, returns="bigint")
        calls = [{*host.call(function, EVENTS, 5).drop_null().to_pylist()} for _ in range(12)]
    assert all(len(processes) == 1 for processes in calls), "a call is repeated with all its keys"
    assert 1 < len(set.union(*calls)) < 12


def test_a_process_is_kept_and_killing_it_while_idle_changes_nothing(declare: Declare) -> None:
    with FunctionHost() as host:
        function = declare("process", returns="bigint")
        first = host.call(function, EVENTS, 5)[1].as_py()
        assert host.call(function, EVENTS, 5)[1].as_py() == first
        os.kill(first, signal.SIGKILL)
        while os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT) is None:
            pass
        assert host.call(function, EVENTS, 5)[1].as_py() != first


def test_each_function_has_a_process_and_idle_ones_end_first(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "MOST_CHILDREN", 2)
    functions = [declare("process", returns="bigint", deadline_ms=20_000 + i) for i in range(3)]
    with FunctionHost() as host:
        one, two = (host.call(function, EVENTS, 5)[1].as_py() for function in functions[:2])
        assert one != two
        assert host.call(functions[0], EVENTS, 5)[1].as_py() == one
        three = host.call(functions[2], EVENTS, 5)[1].as_py()
        assert not _lives(two) and _lives(one) and _lives(three)
    assert not _lives(one) and not _lives(three)


def test_its_output_is_discarded(host: FunctionHost, declare: Declare) -> None:
    assert host.call(declare("talks"), EVENTS, 5)[1].as_py() == 1.0


def test_much_data_is_transferred_in_both_directions(host: FunctionHost, declare: Declare) -> None:
    rows = 300_000
    table = pa.table({"key": np.arange(rows), "value": np.arange(rows) / 8})
    assert host.call(declare("sums", "grouped"), table, rows).to_numpy().tolist() == (np.arange(rows) / 8).tolist()


ORPHAN = """
import sys, threading, time
sys.path.insert(0, {folder!r})
import pyarrow as pa
from millpond.model.functions import UserFunction
from millpond.runtime.functions.host import FunctionHost
host = FunctionHost()
made = UserFunction("f", "1", "sample_functions:hangs", "holistic", ("double",), "double", 1_000)
host.load(made)
child = host._children[made][0]
child._remaining_seconds = lambda *_: 600.0  # it does not end the child
threading.Thread(target=host.call, args=(made, pa.table({{"key": [0], "value": [3.0]}}), 1), daemon=True).start()
while child._progress[0] < 0:
    time.sleep(0.01)
print(child._process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_an_orphan_that_hangs_is_ended_by_the_kernel() -> None:
    program = ORPHAN.format(folder=str(Path(__file__).parent))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())  # which hangs
        parent.kill()
    assert _lives(child)
    limit = time.monotonic() + 60
    while _lives(child) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not _lives(child)


def test_an_idle_orphan_ends_itself(declare: Declare) -> None:
    host = FunctionHost()
    function = declare("process", returns="bigint")
    number = host.call(function, EVENTS, 5)[1].as_py()
    child = host._children[function][0]._process
    assert child.stdin is not None
    child.stdin.close()  # as when the parent is gone
    child.wait(120)
    assert not _lives(number)
    host.close()


def _lives(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def _module(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> UserFunction:
    (folder / "written_here.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return UserFunction("f", "2", "written_here:f", "holistic", ("double",), "double", 30_000)


def test_a_changed_module_is_noticed(host: FunctionHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function = host.load(_module(tmp_path, monkeypatch, "def f(values): return 1.0"))
    assert len(function.digest) == 64
    with FunctionHost() as other:
        assert other.call(function, EVENTS, 5).to_pylist() == [None, 1.0, None, 1.0, 1.0]
    changed = _module(tmp_path, monkeypatch, "def f(values): return 2.0")
    with FunctionHost() as other:
        with pytest.raises(UserFunctionError, match="is no longer what it was: the file of written_here:f"):
            other.call(function, EVENTS, 5)
        assert other.load(changed).digest != function.digest


@pytest.mark.parametrize(("text", "what"), [
    ("raise RuntimeError('not today')", "raised RuntimeError: not today"),
    ("import os; os._exit(9)", "ended its process with status 9"),
    ("def f(:", "raised SyntaxError"),
])  # fmt: skip
def test_a_module_that_does_not_import(
    host: FunctionHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, what: str
) -> None:
    with pytest.raises(UserFunctionError, match=what):
        host.load(_module(tmp_path, monkeypatch, text))


def test_a_module_that_is_not_there(host: FunctionHost) -> None:
    function = UserFunction("f", "1", "nowhere.at_all:f", "holistic", ("double",), "double")
    with pytest.raises(UserFunctionError, match="No module named 'nowhere'"):
        host.load(function)


def test_importing_has_its_own_deadline(host: FunctionHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = "import time\ntime.sleep({})\ndef f(values): return 1.0"
    patient = _module(tmp_path, monkeypatch, slow.format(1))
    hurried = msgspec.structs.replace(patient, deadline_ms=900)
    assert host.load(patient).digest == host.load(hurried).digest
    monkeypatch.setattr(hosts, "LOADING_MS", 1500)
    with pytest.raises(UserFunctionError, match=r"did not answer within 1.5 s"):
        host.load(_module(tmp_path, monkeypatch, slow.format(600)))
