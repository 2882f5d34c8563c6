"""Finds the matches of a row pattern among the events of many keys, for all keys at once.

Events are sorted by key, then by their order within the key. A match is attempted from every event that may begin one;
all attempts advance by one event at a time, so loops run over the longest attempt, not over events or keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from millpond.arrays import Ints, Mask, new_values, repeated
from millpond.runtime.matching.automaton import DEAD, START, Automaton


class Attempts(NamedTuple):
    """Attempts to match, each from one event.

    `starts`: the position of the first event. `ends`: the position after the last event of the match, 0 if there is no
    match. `decided_us`: the watermark from which on no other event can change the match.
    """

    starts: Ints
    ends: Ints
    decided_us: Ints


class MatchedEvents(NamedTuple):
    """The events of some matches, one match after the other: positions, variables, and the bounds of each match."""

    places: Ints
    variables: Ints
    offsets: Ints


Codes: TypeAlias = Callable[[Ints, Ints], Ints]
"""What `Automaton.encode` returns for events, given the positions of the first events of the attempts, and theirs."""


def attempted(automaton: Automaton, codes: Codes, times_us: Ints, ends: Ints, starts: Ints, within_us: int) -> Attempts:
    """An attempt from each event at `starts` that may begin a match.

    `ends`: the position after the last event of the key of each event. While more events of a key may arrive, an
    attempt that reached its last event is decided only when the watermark has passed `within_us` after the first event.
    """
    states = automaton.step(np.full(len(starts), START), codes(starts, starts))
    begun = states != DEAD
    starts, states = starts[begun], states[begun]
    found, decided = np.zeros(len(starts), np.int64), times_us[starts] + within_us
    lanes, limits = np.arange(len(starts)), times_us[starts] + within_us
    at = starts
    while len(lanes):
        completes, over = automaton.completes[states], automaton.ends[states]
        found[lanes[completes]] = at[completes] + 1
        decided[lanes[over]] = times_us[at[over]]
        at = at + 1
        going = np.flatnonzero(~over & (at < ends[starts[lanes]]))
        going = going[times_us[at[going]] <= limits[lanes[going]]]
        lanes, states, at = lanes[going], states[going], at[going]
        states = automaton.step(states, codes(starts[lanes], at))
        failed = states == DEAD
        decided[lanes[failed]] = times_us[at[failed]]
        lanes, states, at = lanes[~failed], states[~failed], at[~failed]
    return Attempts(starts, found, decided)


def one_after_another(attempts: Attempts, ends: Ints, known_us: int) -> Mask:
    """The attempts that are matches if the next match of a key begins after the last event of the previous one.

    `ends`: as for `attempted`. An attempt that is not decided at the watermark `known_us` ends the search in its key,
    because it may take the next events.
    """
    starts, count = attempts.starts, len(attempts.starts)
    keys = ends[starts]
    undecided = attempts.decided_us > known_us
    matched: Mask = ~undecided & (attempts.ends > 0)
    after = np.where(matched, attempts.ends, starts + 1)
    following = np.append(np.searchsorted(starts, after), count)  # the last place is where every search ends
    following[:-1][np.append(keys, -1)[following[:-1]] != keys] = count
    following[:-1][undecided] = np.flatnonzero(undecided)
    reached = np.zeros(count + 1, bool)
    reached[:-1] = new_values(keys)
    while True:  # each round doubles the number of steps that were followed
        reached[following[reached]] = True
        further = following[following]
        if (further == following).all():
            return matched & reached[:-1]
        following = further


def matched_events(automaton: Automaton, codes: Codes, starts: Ints, ends: Ints) -> MatchedEvents:
    """The events of matches from `starts` up to `ends`, with the number of the variable that each was matched as."""
    lengths = ends - starts
    match, nth = repeated(lengths)
    places, offsets = starts[match] + nth, np.concatenate([[0], np.cumsum(lengths)])
    longest = np.argsort(-lengths, kind="stable")
    firsts, begins = offsets[:-1][longest], starts[longest]
    longer = np.searchsorted(-lengths[longest], -np.arange(int(lengths.max(initial=0))), "left").tolist()
    states, moves = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
    state = np.full(len(starts), START)
    for i, count in enumerate(longer):
        code, at = codes(begins[:count], begins[:count] + i), firsts[:count] + i
        before, state = state[:count], automaton.step(state[:count], code)
        moves[at] = automaton.transitions(before, code)
        states[at] = state
    tables = automaton.tables()
    variables = np.empty(len(places), np.int64)
    thread = tables.completes[states[firsts + lengths[longest] - 1]]
    for i, count in reversed(list(enumerate(longer))):
        at = firsts[:count] + i
        variables[at] = tables.variable[states[at], thread[:count]]
        thread[:count] = tables.parent[moves[at], thread[:count]]
    return MatchedEvents(places, variables, offsets)
