"""The matches of row patterns are those of a backtracking matcher."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.inputs.examples import examples
from kit.naive.row_patterns import Match, first_match, matches
from millpond.arrays import Ints
from millpond.errors import QueryTypeError
from millpond.model.patterns.grammar import parse, variables_of
from millpond.runtime.matching.automaton import Automaton
from millpond.runtime.matching.match_events import attempted, matched_events, one_after_another

NEVER = 1 << 62


def written(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    quantifiers = st.sampled_from(["?", "*", "+", "{2}", "{1,}", "{,2}", "{1,3}", "??", "*?", "+?", "{1,2}?", "{0,1}"])
    return st.one_of(
        st.lists(children, min_size=2, max_size=3).map(" ".join),
        st.lists(children, min_size=2, max_size=3).map(lambda parts: f"({' | '.join(parts)})"),
        st.builds("({}){}".format, children, quantifiers),
    )


def parses(text: str) -> bool:
    try:
        parse(text)
    except QueryTypeError:
        return False
    return True


PATTERNS = st.recursive(st.sampled_from("ABC"), written, max_leaves=6).filter(parses)
EVENTS = st.lists(st.tuples(st.sets(st.sampled_from("ABC")), st.integers(0, 3)), max_size=12)


def found_in(
    text: str, keys: Sequence[tuple[Sequence[set[str]], Sequence[int]]], within: int, known: int, *, overlapping: bool
) -> list[list[Match]]:  # fmt: skip
    """The matches of each key that are decided at a watermark."""
    automaton = Automaton(text)
    names = automaton.names
    held = [symbol for symbols, _ in keys for symbol in symbols]
    bits = np.array([sum(1 << names.index(name) for name in one if name in names) for one in held], np.int64)
    times = np.array([time for _, some in keys for time in some], np.int64)
    bounds = np.cumsum([0, *(len(some) for _, some in keys)])
    ends = np.repeat(bounds[1:], np.diff(bounds))
    fixed = automaton.encode(bits)

    def codes(_starts: Ints, at: Ints) -> Ints:
        return fixed[at]

    tried = attempted(automaton, codes, times, ends, np.arange(len(times)), within)
    taken = (tried.decided_us <= known) & (tried.ends > 0)
    if not overlapping:
        taken = one_after_another(tried, ends, known)
    starts, lasts = tried.starts[taken], tried.ends[taken]
    events = matched_events(automaton, codes, starts, lasts)
    found: list[list[Match]] = [[] for _ in keys]
    for i, start in enumerate(starts.tolist()):
        key = int(np.searchsorted(bounds, start, "right")) - 1
        variables = events.variables[events.offsets[i] : events.offsets[i + 1]].tolist()
        found[key].append(Match(start - int(bounds[key]), tuple(names[one] for one in variables)))
    return found


def timed(events: Sequence[tuple[set[str], int]]) -> tuple[list[set[str]], list[int]]:
    return [held for held, _ in events], np.cumsum([gap for _, gap in events]).tolist()


@settings(max_examples=examples(150), deadline=None)
@given(PATTERNS, st.lists(EVENTS, min_size=1, max_size=3), st.integers(1, 12), st.booleans())
def test_matches_are_those_of_the_backtracking_twin(
    text: str, keys: list[list[tuple[set[str], int]]], within: int, overlapping: bool
) -> None:
    element, events = parse(text), [timed(some) for some in keys]
    expected = [matches(element, *some, within, overlapping=overlapping) for some in events]
    assert found_in(text, events, within, NEVER, overlapping=overlapping) == expected


@settings(max_examples=examples(100), deadline=None)
@given(PATTERNS, EVENTS, EVENTS, st.integers(1, 12), st.booleans())
def test_a_decided_match_stays_whatever_events_follow(
    text: str, first: list[tuple[set[str], int]], later: list[tuple[set[str], int]], within: int, overlapping: bool
) -> None:
    held, times = timed(first)
    known = times[-1] if times else 0
    decided = found_in(text, [(held, times)], within, known, overlapping=overlapping)[0]
    more, gaps = timed(later)
    every = [*held, *more], [*times, *(known + 1 + gap for gap in gaps)]
    final = matches(parse(text), *every, within, overlapping=overlapping)
    assert decided == [match for match in final if match in decided]
    if not overlapping:
        assert decided == final[: len(decided)]


@pytest.mark.parametrize(
    ("text", "events", "expected"),
    [
        ("A B+ C", "ABBC", "ABBC"), ("A B* B", "ABB", "ABB"), ("A+?", "AAA", "A"), ("A | A B", "AB", "A"),
        ("A B | A", "AB", "AB"), ("A {2,3}", "AAAA", "AAA"), ("A {2,3}?", "AAAA", "AA"), ("(A | B)+ C", "ABAC", "ABAC"),
    ],
)  # fmt: skip
def test_the_preferred_match_is_taken(text: str, events: str, expected: str) -> None:
    found = first_match(parse(text), [{one} for one in events], [0] * len(events), 1, 0)
    assert found is not None and "".join(found.variables) == expected
    [mine] = found_in(text, [([{one} for one in events], [0] * len(events))], 1, NEVER, overlapping=False)
    assert mine[0] == found


def test_a_match_is_decided_as_soon_as_no_event_can_change_it() -> None:
    early = found_in("A B", [([{"A"}, {"B"}], [0, 1])], 10, 1, overlapping=False)
    greedy = found_in("A B+", [([{"A"}, {"B"}], [0, 1])], 10, 1, overlapping=False)
    later = found_in("A B+", [([{"A"}, {"B"}], [0, 1])], 10, 10, overlapping=False)
    assert [len(found[0]) for found in (early, greedy, later)] == [1, 0, 1]


def test_a_hot_key_is_matched_without_a_loop_over_its_matches() -> None:
    events = [{"A"}, {"B"}] * 50_000
    [found] = found_in("A B", [(events, list(range(len(events))))], 10, NEVER, overlapping=False)
    assert len(found) == 50_000


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("A*", "can match no event at all"), ("(A | B", "at its end"), ("A )", "at `)`"), ("", "at its end"),
        ("A {2,1}", "at `{2,1}`"), ("^A", "at `^`"), ("B (A?)*", "repeats, without a limit"),
        ("A{600}", "600 elements"),
    ],
)  # fmt: skip
def test_patterns_that_are_refused(text: str, what: str) -> None:
    with pytest.raises(QueryTypeError, match=re.escape(what)):
        parse(text)


def test_variables_are_named_once() -> None:
    assert variables_of(parse("a b+ (A | c)?")) == ("A", "B", "C")
