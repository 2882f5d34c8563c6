"""Compiles a row pattern to an automaton that is deterministic over sets of conditions, and respects preferences.

The elements of a pattern are numbered; a thread is at the element that it matched last. As in a backtracking matcher,
each element has an ordered list of the elements that may follow it (or of the end of the pattern). A state is the list
of threads after an event, the preferred one first (Pike's algorithm); threads that are less preferred than a complete
match are dropped. So the last complete match before a state without threads is the preferred one. States are made when
events first need them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from millpond.arrays import Ints, places_of
from millpond.model.patterns.grammar import Choice, Element, Repeat, Series, Single, parse, variables_of

DEAD, START = 0, 1
"""The states without threads, and before the first event."""

_END = -1
_UNKNOWN = -1
_MOST_STATES = 1 << 13
_KNOWN_PATTERNS = 256


class Tables(NamedTuple):
    """What reads a match backwards: for each state the thread that completes the pattern (-1: none), for each state and
    thread the variable that it matched last, and for each transition and thread the thread that it comes from.
    """

    completes: Ints
    variable: Ints
    parent: Ints


class Automaton:
    """The automaton of a pattern.

    `names` are its variables. `completes`: for each state, whether a match may end with its event. `ends`: for each
    state, whether no further event can change the match.
    """

    def __init__(self, text: str) -> None:
        element = parse(text)
        self.names = variables_of(element)
        program = _Program()
        program.add(element)
        self._variable_of = [self.names.index(name) for name in program.names]
        self._followers = [program.reached(line + 1) for line in program.lines]
        self._first = program.reached(0)
        self._clear()

    def _clear(self) -> None:
        self._codes: dict[int, int] = {}
        self._symbols: list[int] = []
        self._states: list[tuple[int, ...]] = []
        self._candidates: list[list[tuple[int, int]]] = []  # by state: the next elements, each with its thread
        self._numbers: dict[tuple[int, ...], int] = {}
        self._parents: list[list[int]] = []
        self._completed: list[int] = []
        self.completes = self.ends = np.zeros(0, bool)
        self._next = np.full((16, 8), _UNKNOWN)
        self._transition = np.full((16, 8), _UNKNOWN)
        self._number(())
        self._add((), [(element, 0) for element in self._first], -1)

    def begin(self) -> None:
        """Forget all states if there are many; those of an earlier call are not valid any more."""
        if len(self._states) > _MOST_STATES:
            self._clear()

    def encode(self, bits: Ints) -> Ints:
        """The codes of events, given as bit sets of the variables whose conditions they meet."""
        distinct, places = places_of(bits)
        for symbol in distinct.tolist():
            if symbol not in self._codes:
                self._codes[symbol] = len(self._symbols)
                self._symbols.append(symbol)
        more = len(self._symbols) - self._next.shape[1]
        if more > 0:
            self._next, self._transition = (_grown(table, 1, more) for table in (self._next, self._transition))
        return np.array([self._codes[symbol] for symbol in distinct.tolist()], np.int64)[places]

    def step(self, states: Ints, codes: Ints) -> Ints:
        """The states after one more event each."""
        reached: Ints = self._next[states, codes]
        unknown = reached == _UNKNOWN
        if unknown.any():
            width = self._next.shape[1]
            for pair in np.unique(states[unknown] * width + codes[unknown]).tolist():
                self._make(*divmod(pair, width))
            self.completes = np.array(self._completed) >= 0
            self.ends = np.array([not some for some in self._candidates])
            reached = self._next[states, codes]
        return reached

    def transitions(self, states: Ints, codes: Ints) -> Ints:
        """The numbers of the transitions from these states, which `step` has made."""
        return np.asarray(self._transition[states, codes])

    def tables(self) -> Tables:
        """The tables of all states and transitions that were computed until now."""
        variables = [[self._variable_of[element] for element in threads] for threads in self._states]
        return Tables(np.array(self._completed), _padded(variables), _padded(self._parents))

    def _number(self, threads: tuple[int, ...]) -> int:
        """The number of the state with these threads."""
        if threads not in self._numbers:
            candidates, completes = list[tuple[int, int]](), -1
            for thread, element in enumerate(threads):
                following = self._followers[element]
                candidates += [(one, thread) for one in following if one != _END]
                if _END in following:
                    threads, completes = threads[: thread + 1], thread
                    break
            self._numbers[threads] = self._add(threads, candidates, completes)
        return self._numbers[threads]

    def _add(self, threads: tuple[int, ...], candidates: list[tuple[int, int]], completes: int) -> int:
        self._states.append(threads)
        self._candidates.append(candidates)
        self._completed.append(completes)
        if len(self._states) > len(self._next):
            more = len(self._states)
            self._next, self._transition = (_grown(table, 0, more) for table in (self._next, self._transition))
        return len(self._states) - 1

    def _make(self, state: int, code: int) -> None:
        """Make the transition from a state by an event."""
        symbol, reached = self._symbols[code], dict[int, int]()
        for element, thread in self._candidates[state]:
            if symbol >> self._variable_of[element] & 1:
                reached.setdefault(element, thread)
                if _END in self._followers[element]:
                    # a less preferred thread cannot win against a complete match, which needs no further event
                    break
        self._next[state, code] = self._number(tuple(reached))
        self._transition[state, code] = len(self._parents)
        self._parents.append(list(reached.values()))


@lru_cache(_KNOWN_PATTERNS)
def automaton_of(text: str) -> Automaton:
    """The automaton of a pattern, which keeps its states from one epoch to the next."""
    return Automaton(text)


class _Program:
    """A pattern as the instructions of a backtracking matcher.

    An instruction is the number of an element that is matched before the next line, or the lines to go on at, in the
    order of preference. `lines` are the lines of the elements, `names` their variables.
    """

    def __init__(self) -> None:
        self._code: list[int | tuple[int, ...]] = []
        self.lines: list[int] = []
        self.names: list[str] = []

    def add(self, element: Element) -> None:
        """Append the instructions of an element."""
        if isinstance(element, Single):
            self._code.append(len(self.names))
            self.lines.append(len(self._code) - 1)
            self.names.append(element.variable)
        elif isinstance(element, Series):
            for part in element.parts:
                self.add(part)
        elif isinstance(element, Choice):
            self._choice(element)
        else:
            self._repeat(element)

    def _choice(self, element: Choice) -> None:
        jumps = []
        for part in element.parts[:-1]:
            split = self._reserve()
            self.add(part)
            jumps.append(self._reserve())
            self._code[split] = (split + 1, len(self._code))
        self.add(element.parts[-1])
        for jump in jumps:
            self._code[jump] = (len(self._code),)

    def _repeat(self, element: Repeat) -> None:
        for _ in range(element.least):
            self.add(element.part)
        optional = 1 if element.most is None else element.most - element.least
        splits = []
        for _ in range(optional):
            splits.append(self._reserve())
            self.add(element.part)
        if element.most is None:
            self._code.append((splits[0],))
        for split in splits:
            ways = split + 1, len(self._code)
            self._code[split] = ways[::-1] if element.reluctant else ways

    def _reserve(self) -> int:
        self._code.append(())
        return len(self._code) - 1

    def reached(self, line: int) -> list[int]:
        """The elements that are matched next from a line, and the end, in the order of preference."""
        return list(dict.fromkeys(self._reached(line, set())))

    def _reached(self, line: int, seen: set[int]) -> Iterator[int]:
        stack = [line]
        while stack:
            at = stack.pop()
            if at in seen:
                continue
            seen.add(at)
            if at == len(self._code):
                yield _END
                return
            instruction = self._code[at]
            if isinstance(instruction, int):
                yield instruction
            else:
                stack += reversed(instruction)


def _grown(table: Ints, axis: int, more: int) -> Ints:
    """A table with more rows or columns, which are unknown."""
    shape = list(table.shape)
    shape[axis] = more
    return np.concatenate([table, np.full(shape, _UNKNOWN)], axis=axis)


def _padded(rows: list[list[int]]) -> Ints:
    table = np.zeros((len(rows), max(1, *map(len, rows))) if rows else (0, 1), np.int64)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    return table
