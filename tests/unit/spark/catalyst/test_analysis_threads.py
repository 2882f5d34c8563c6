"""Analyses that take too long are given up, store nothing, and do not block others."""

from __future__ import annotations

import threading

import pytest

from millpond.errors import BusyError, NotServingError, QueryRefused
from millpond.spark.catalyst import analysis_threads
from millpond.spark.catalyst.analysis_threads import Abandoned, Analyses, raise_if_abandoned, storing_results


def test_what_an_analysis_makes_or_raises_is_handed_on() -> None:
    analyses = Analyses()
    assert analyses.run("q", lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        analyses.run("q", lambda: 1 // 0)
    raise_if_abandoned()  # no analysis is at work in this thread


def test_one_that_takes_too_long_is_given_up_and_keeps_nothing() -> None:
    analyses, go_on, ended, kept = Analyses(seconds=0.3, at_once=2), threading.Event(), threading.Event(), []

    def slow() -> None:
        go_on.wait(60)
        try:
            with storing_results():
                kept.append("q")
        except Abandoned:
            ended.set()
            raise

    with pytest.raises(QueryRefused, match=r"The analysis of q was given up after 0\.3 s"):
        analyses.run("q", slow)
    analyses._seconds = 60.0
    assert analyses.run("other", lambda: 1) == 1  # while the first is still at work
    go_on.set()
    assert ended.wait(60) and not kept


def test_one_that_keeps_what_it_found_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    analyses, keeps, waited, kept = Analyses(seconds=0.2), threading.Event(), threading.Event(), []
    give_up = analysis_threads._Analysis.give_up

    def tried(analysis: analysis_threads._Analysis[str]) -> bool:
        assert keeps.wait(60)  # the time limit is over once the analysis stores its result
        given_up = give_up(analysis)
        waited.set()
        return given_up

    def work() -> str:
        with storing_results():
            keeps.set()
            assert waited.wait(60)
            kept.append("q")
        return "made"

    monkeypatch.setattr(analysis_threads._Analysis, "give_up", tried)
    assert analyses.run("q", work) == "made" and kept == ["q"]


def test_a_deep_one_ends_at_its_next_node() -> None:
    analyses, ended = Analyses(seconds=0.2), threading.Event()

    def endless() -> None:
        try:
            while True:
                raise_if_abandoned()
        finally:
            ended.set()

    with pytest.raises(QueryRefused):
        analyses.run("q", endless)
    assert ended.wait(60)


def test_there_are_so_many_at_once() -> None:
    analyses, go_on = Analyses(seconds=0.2, at_once=1), threading.Event()
    with pytest.raises(QueryRefused):
        analyses.run("first", lambda: go_on.wait(60))
    with pytest.raises(BusyError, match=r"second was not analysed"):
        analyses.run("second", lambda: 1)
    analyses._seconds = 60.0
    go_on.set()
    assert analyses.run("third", lambda: True)


def test_no_wait_outlives_the_end() -> None:
    analyses, go_on, found = Analyses(), threading.Event(), []

    def ask() -> None:
        with pytest.raises(NotServingError) as caught:
            analyses.run("q", lambda: go_on.wait(60))
        found.append(caught.value.code)

    asking = threading.Thread(target=ask)
    asking.start()
    analyses.end()
    asking.join(60)
    go_on.set()
    assert found == ["MP-NOT-SERVING"]
