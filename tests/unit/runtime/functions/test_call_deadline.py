"""A call that takes too long ends, whatever its code catches; other calls are unaffected."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable

import pytest

from millpond.runtime.functions.call_deadline import CallLate, within
from millpond.spark.catalyst.user_scalars import _attempting


def stubborn() -> None:
    while True:
        try:
            time.sleep(60)
        except Exception:
            continue


def spin() -> None:
    while True:
        pass


def backtrack() -> object:
    return re.match("(a+)+$", "a" * 40 + "!")


@pytest.mark.parametrize("function", [stubborn, spin, backtrack])
def test_a_call_ends_at_its_deadline(function: Callable[[], object]) -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(CallLate):  # without the deadline, none of them would end
        within(0.2, function, [])
    assert signal.getsignal(signal.SIGALRM) is before and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_values_and_errors_pass_and_other_threads_have_no_deadline() -> None:
    assert within(600, divmod, [7, 2]) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        within(600, divmod, [7, 0])
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(within(0.01, lambda: time.sleep(0.1) or 1, [])))
    thread.start()
    thread.join()
    assert found == [1]


def test_a_function_that_is_late_again_and_again_is_called_no_more() -> None:
    calls: list[int] = []

    def slow(n: int) -> int:
        calls.append(n)
        if n < 0:
            signal.raise_signal(signal.SIGALRM)  # as at the deadline
        return 10 // n

    attempt = _attempting(slow, 600, 2)
    assert [attempt((n,)) for n in (1, 0, -1, 2, -1, 5, 1)] == [(10,), None, None, (5,), None, None, None]
    assert calls == [1, 0, -1, 2, -1]
