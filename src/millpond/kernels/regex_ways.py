"""Counts the ways in which a pattern's automaton can read one text, where each repeated part is used at most once.

An automaton without ambiguous loops can still be slow: `x?x?x?…xxx…` has 2^n ways for n optional parts. Loops add a
power of the length of the text to them (`regex_cost`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

MOST_WAYS = 1_000_000
"""A pattern with more ways to read one text is refused."""
_MOST_WORK = 500_000
"""The most transitions that are followed before a pattern counts as one with too many ways."""


def has_many_ways(first: Iterable[int], follows: Iterable[tuple[int, int]], characters: Mapping[int, int]) -> bool:
    """Whether some text can perhaps be read in more than `MOST_WAYS` ways.

    `characters`: the set of characters of each position, as bits. `first`, `follows`: the positions with which a match
    begins, and pairs of consecutive ones, each as often as there are ways. The count is an upper bound: ways that meet
    in one position count together if their last characters are equal.
    """
    steps = Counter(follows)
    ways: dict[int, list[int]] = {}
    for one, other in steps:
        ways.setdefault(one, []).append(other)
    loop_of = {one: number for number, loop in enumerate(components(ways)) for one in loop}
    onward = {
        one: [to for to in after if one not in loop_of or loop_of[one] != loop_of.get(to)]
        for one, after in ways.items()
    }
    counts: Mapping[int, int] = Counter(first)
    work = 0
    while counts:  # of texts of one length: the most ways that end with each position
        if _together(counts, characters) > MOST_WAYS:
            return True
        before: dict[int, dict[int, int]] = {}
        for one, number in counts.items():
            work += len(onward.get(one, ()))
            for to in onward.get(one, ()):
                before.setdefault(to, {})[one] = number * steps[one, to]
        if work > _MOST_WORK:
            return True
        counts = {to: _together(found, characters) for to, found in before.items()}
    return False


def _together(counts: Mapping[int, int], characters: Mapping[int, int]) -> int:
    """The most ways of positions that can have read the same character."""
    shared: list[tuple[int, int]] = []  # disjoint sets of characters, with the ways that have read one of the set
    for one, number in counts.items():
        rest, parts = characters[one], list[tuple[int, int]]()
        for letters, known in shared:
            both = letters & rest
            parts += [(both, known + number)] if both else []
            parts += [(letters & ~both, known)] if letters & ~both else []
            rest &= ~both
        shared = [*parts, *([(rest, number)] if rest else [])]
    return max((number for _, number in shared), default=0)


def components(ways: dict[int, list[int]]) -> list[set[int]]:
    """The strongly connected components that contain a cycle (Kosaraju's algorithm, without recursion)."""
    order: list[int] = []
    seen: set[int] = set()
    for root in ways:
        stack: list[tuple[int, Iterator[int]]] = [] if root in seen else [(root, iter(ways[root]))]
        seen.add(root)
        while stack:
            node, rest = stack[-1]
            for other in rest:
                if other not in seen:
                    seen.add(other)
                    stack.append((other, iter(ways.get(other, ()))))
                    break
            else:
                order.append(node)
                stack.pop()
    back: dict[int, list[int]] = {}
    for one, reached in ways.items():
        for other in reached:
            back.setdefault(other, []).append(one)
    found, done = [], set()
    for root in reversed(order):
        if root in done:
            continue
        component, pending = set(), [root]
        while pending:
            node = pending.pop()
            if node not in done:
                done.add(node)
                component.add(node)
                pending.extend(one for one in back.get(node, ()) if one not in done)
        if len(component) > 1 or root in ways.get(root, ()):
            found.append(component)
    return found
