"""Analyses Java's regular expressions: whether a match may take 2^n steps, and how deeply calls are nested.

Java's matcher backtracks. It tries every way in which a text can be read, so a text of n characters with two ways for
each part takes 2^n steps. That can happen if the pattern's automaton, here Glushkov's, has a state from which one text
leads back to it on two paths (Weideman, van der Merwe, Berglund, Watson: "Analyzing matching time behavior of
backtracking regular expression matchers by using ambiguity of NFA", 2016). Special features of Java are approximated: a
back reference matches nothing, a possessive or atomic group counts as one character, and an unknown property of
characters as every character.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

from millpond.kernels.regex_comments import without_comments

EVERY = (1 << 129) - 1
"""The set of all characters; sets are integers with a bit for each ASCII character and one bit for all others."""
MAX_POSITIONS = 2_000
MAX_PAIRS = 1_000_000
"""The most pairs of states that are compared."""
_COPIES = 8
"""A part with a larger number of repetitions counts as repeated without limit."""


class PatternCost(NamedTuple):
    """The cost of matching a pattern.

    `exponential`: a repeated part that can match one text in two ways, if there is one. `frames`: the most nested calls
    of Java's matcher for each repetition of a group; 0 if no group is repeated; a bound of them for a pattern that is
    not analysed.
    """

    exponential: str | None
    frames: int


def pattern_cost(pattern: str) -> PatternCost:
    """Analyses a pattern; a pattern that Java rejects has no exponential part.

    >>> pattern_cost("^(a+)+$").exponential, pattern_cost("^(a+b)+$")
    ('(a+)+', PatternCost(exponential=None, frames=9))
    """
    parser = _Parser(without_comments(pattern))
    try:
        whole = parser.alternatives()
    except _Malformed:
        # It may be of a form that is not supported. A character adds at most three calls.
        return PatternCost(None, 3 * len(pattern))
    except (_TooLarge, RecursionError):
        return PatternCost(pattern, parser.nodes)
    found = next((text for text, part in [*parser.atoms, (pattern, whole)] if _is_exponential(part)), None)
    if found is not None:
        loops = [text for text, part in parser.loops if _is_exponential(part)]
        found = min(loops, key=len, default=found)
    return PatternCost(found, parser.frames)


class _Malformed(Exception):
    """A pattern that Java rejects, or that has unsupported syntax."""


class _TooLarge(Exception):
    """A pattern with too many parts."""


class _Part(NamedTuple):
    """A part of a pattern as a Glushkov automaton.

    `characters`: the set of characters of each position. `first`, `last`: the positions with which a match can begin
    and end. `follows`: pairs of consecutive positions, each as often as there are ways. `empty`: the number of ways to
    match the empty text, 2 for two or more. `ambiguous`: known to match some text in two ways repeatedly.
    """

    characters: dict[int, int]
    first: tuple[int, ...]
    last: tuple[int, ...]
    follows: tuple[tuple[int, int], ...]
    empty: int
    ambiguous: bool = False


_EMPTY = _Part({}, (), (), (), 1)


def _letters(text: Iterable[str]) -> int:
    found = 0
    for one in text:
        found |= 1 << min(ord(one), 128)
    return found


def _range(first: str, last: str) -> int:
    low, high = min(ord(first), 128), min(ord(last), 128)
    if high < low:
        raise _Malformed
    return (1 << (high + 1)) - (1 << low)


_DIGITS, _LOWER, _UPPER, _OTHER = _range("0", "9"), _range("a", "z"), _range("A", "Z"), 1 << 128
_SPACES = _letters(" \t\n\r\f\v")
_PUNCTUATION = _letters("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_CLASSES = {
    "d": _DIGITS, "w": _DIGITS | _LOWER | _UPPER | _letters("_"), "s": _SPACES, "h": _letters(" \t") | _OTHER,
    "v": _letters("\n\v\f\r") | _OTHER, "R": _letters("\n\v\f\r") | _OTHER,
}  # fmt: skip
_PROPERTIES = {
    "lower": _LOWER, "upper": _UPPER, "alpha": _LOWER | _UPPER, "digit": _DIGITS, "punct": _PUNCTUATION,
    "alnum": _LOWER | _UPPER | _DIGITS, "space": _SPACES, "l": _LOWER | _UPPER | _OTHER, "ll": _LOWER | _OTHER,
    "lu": _UPPER | _OTHER, "n": _DIGITS | _OTHER, "nd": _DIGITS | _OTHER, "p": _PUNCTUATION | _OTHER,
    "isalphabetic": _LOWER | _UPPER | _OTHER, "isdigit": _DIGITS | _OTHER,
}  # fmt: skip
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}


class _Parser:
    """Parses a pattern; `atoms`: parts that are matched on their own, `loops`: repeated parts, each with its text."""

    def __init__(self, pattern: str) -> None:
        self._text, self._at, self._ignores = pattern, 0, False
        self._count = 0
        self.atoms: list[tuple[str, _Part]] = []
        self.loops: list[tuple[str, _Part]] = []
        self.nodes = self.frames = 0

    def alternatives(self, *, inside: bool = False) -> _Part:
        found = self._sequence()
        while self._take("|"):
            self.nodes += 2
            found = _either(found, self._sequence())
        if not inside and self._at < len(self._text):
            raise _Malformed
        return found

    def _sequence(self) -> _Part:
        found = _EMPTY
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            found = _then(found, self._repeated())
        return found

    def _repeated(self) -> _Part:
        began, before = self._at, self.nodes
        is_group = self._text[began] == "("
        part = self._one()
        while (times := self._times()) is not None:
            self.nodes += 2
            least, most = times
            is_possessive = self._take("+")
            if not is_possessive:
                self._take("?")  # a reluctant quantifier tries the same ways in another order
                if is_group and most > _COPIES:
                    self.frames = max(self.frames, self.nodes - before)
            part = self._times_of(part, least, most)
            text = self._text[began : self._at]
            self.loops.append((text, part))
            if is_possessive:
                part = self._atom(text, part)
        return part

    def _times_of(self, part: _Part, least: int, most: float) -> _Part:
        if most <= _COPIES:
            found = _EMPTY  # a{1,3} is a(a(a)?)?
            for number in range(int(most), 0, -1):
                found = _then(part if number == 1 else self._copied(part), found)
                found = found if number <= least else found._replace(empty=min(2, found.empty + 1))
            return found
        counted = most != float("inf") and part.empty > 0 and bool(part.characters)
        follows = (*part.follows, *product(part.last, part.first))
        return part._replace(follows=follows, empty=part.empty if least else 1, ambiguous=part.ambiguous or counted)

    def _copied(self, part: _Part) -> _Part:
        new = {old: self._number() for old in part.characters}
        return _Part(
            {new[old]: characters for old, characters in part.characters.items()},
            tuple(map(new.__getitem__, part.first)), tuple(map(new.__getitem__, part.last)),
            tuple((new[one], new[other]) for one, other in part.follows), part.empty, part.ambiguous,
        )  # fmt: skip

    def _atom(self, text: str, part: _Part) -> _Part:
        """A part that is not backtracked into once it has matched; for the other parts it counts as one character."""
        self.atoms.append((text, part))
        every = 0
        for characters in part.characters.values():
            every |= characters
        return self._position(every)._replace(empty=part.empty) if part.characters else _EMPTY

    def _times(self) -> tuple[int, float] | None:
        for mark, least, most in (("*", 0, float("inf")), ("+", 1, float("inf")), ("?", 0, 1.0)):
            if self._take(mark):
                return least, most
        if self._text[self._at : self._at + 1] != "{":
            return None
        inner = self._text[self._at + 1 : self._end("}")]
        low, comma, high = inner.partition(",")
        if not low.isdecimal() or (high and not high.isdecimal()):
            raise _Malformed
        self._at += len(inner) + 2
        return int(low), float(high) if high else float("inf") if comma else float(low)

    def _one(self) -> _Part:
        mark = self._next()
        self.nodes += 1
        if mark == "(":
            self.nodes += 2
            return self._group()
        if mark == "[":
            return self._position(self._class())
        if mark == ".":
            return self._position(EVERY)
        if mark in "^$":
            return _EMPTY
        if mark == "\\":
            return self._escape()
        return self._position(_letters(mark))

    def _group(self) -> _Part:
        began, before, kind = self._at - 1, self._ignores, ""
        if self._take("?"):
            kind = next((one for one in (":", ">", "=", "!", "<=", "<!") if self._take(one)), "")
            if not kind and self._take("<"):
                self._at = self._end(">") + 1
            elif not kind and self._flags():
                return _EMPTY  # the flags apply until the end of the enclosing group
        part = self.alternatives(inside=True)
        if not self._take(")"):
            raise _Malformed
        self._ignores = before
        if kind == ">":
            return self._atom(self._text[began : self._at], part)
        if kind in ("=", "!", "<=", "<!"):
            self.atoms.append((self._text[began : self._at], part))
            return _EMPTY
        return part

    def _flags(self) -> bool:
        """Reads flags such as `i)` or `i:`; returns whether the group consists of flags only."""
        value = True
        while (mark := self._next()) not in ")":
            if mark == ":":
                return False
            if mark == "-":
                value = False
            elif mark == "i":
                self._ignores = value
        return True

    def _escape(self) -> _Part:
        mark = self._next()
        if mark in "bBAGzZ":
            return _EMPTY
        if mark.isdecimal() and mark != "0":
            return _EMPTY
        if mark == "k":
            self._at = self._end(">") + 1
            return _EMPTY
        if mark == "Q":
            end = self._text.find("\\E", self._at)
            text = self._text[self._at : end if end >= 0 else None]
            self._at = len(self._text) if end < 0 else end + 2
            found = _EMPTY
            for one in text:
                found = _then(found, self._position(_letters(one)))
            return found
        return self._position(self._escaped(mark))

    def _escaped(self, mark: str) -> int:
        """The set of characters of an escape."""
        if mark in _CLASSES:
            return _CLASSES[mark]
        if mark.lower() in _CLASSES:
            return EVERY & ~_CLASSES[mark.lower()]
        if mark in "pP":
            name = self._next()
            if name == "{":
                end = self._end("}")
                name, self._at = self._text[self._at : end], end + 1
            known = _PROPERTIES.get(name.lower().removeprefix("is") if len(name) < 5 else name.lower())
            return EVERY if known is None else known if mark == "p" else (EVERY & ~known) | _OTHER
        if mark in "xu":
            if self._take("{"):
                end = self._end("}")
                digits, self._at = self._text[self._at : end], end + 1
            else:
                width = 2 if mark == "x" else 4
                digits, self._at = self._text[self._at : self._at + width], self._at + width
            try:
                return 1 << min(int(digits, 16), 128)
            except ValueError as error:
                raise _Malformed from error
        if mark == "c":
            return 1 << (ord(self._next()) ^ 64) % 128
        if mark == "0":
            return EVERY
        return _letters(_ESCAPED.get(mark, mark))

    def _class(self) -> int:
        """The set of characters of a class in brackets, whose opening bracket has been read."""
        is_other, members, first = self._take("^"), 0, True
        while True:
            mark = self._next()
            if mark == "]" and not first:
                break
            first = False
            if mark == "[":
                members |= self._class()
            elif mark == "&" and self._take("&"):
                members &= self._class()  # this reads the rest of the class with its closing bracket
                break
            else:
                members |= self._member(mark)
        members = self._cased(members)
        # the complement of characters outside ASCII contains other characters outside ASCII
        return (EVERY & ~members) | (_OTHER if members & _OTHER else 0) if is_other else members

    def _member(self, mark: str) -> int:
        low = self._escaped(self._next()) if mark == "\\" else _letters(mark)
        ahead = self._text[self._at : self._at + 2]
        if ahead[:1] != "-" or ahead[1:] in ("]", "[", ""):
            return low
        self._at += 1
        mark = self._next()
        high = self._escaped(self._next()) if mark == "\\" else _letters(mark)
        if low.bit_count() != 1 or high.bit_count() != 1 or high < low:
            raise _Malformed
        return (high << 1) - low

    def _position(self, characters: int) -> _Part:
        number = self._number()
        return _Part({number: self._cased(characters)}, (number,), (number,), (), 0)

    def _cased(self, characters: int) -> int:
        if not self._ignores:
            return characters
        lower, upper = characters & _LOWER, characters & _UPPER
        return characters | lower >> 32 | upper << 32

    def _number(self) -> int:
        self._count += 1
        if self._count > MAX_POSITIONS:
            raise _TooLarge
        return self._count

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise _Malformed
        self._at += 1
        return self._text[self._at - 1]

    def _take(self, mark: str) -> bool:
        if not self._text.startswith(mark, self._at):
            return False
        self._at += len(mark)
        return True

    def _end(self, mark: str) -> int:
        end = self._text.find(mark, self._at)
        if end < 0:
            raise _Malformed
        return end


def _then(left: _Part, right: _Part) -> _Part:
    return _Part(
        left.characters | right.characters,
        left.first + right.first * left.empty,
        right.last + left.last * right.empty,
        (*left.follows, *right.follows, *product(left.last, right.first)),
        min(2, left.empty * right.empty), left.ambiguous or right.ambiguous,
    )  # fmt: skip


def _either(left: _Part, right: _Part) -> _Part:
    return _Part(
        left.characters | right.characters, left.first + right.first, left.last + right.last,
        (*left.follows, *right.follows), min(2, left.empty + right.empty), left.ambiguous or right.ambiguous,
    )  # fmt: skip


def _is_exponential(part: _Part) -> bool:
    """Whether a state leads back to itself on two paths with one text; a pattern that is too large counts as such."""
    if part.ambiguous:
        return True
    ways: dict[int, list[int]] = {}
    for one, other in part.follows:
        ways.setdefault(one, []).append(other)
    for component in _components(ways):
        inner = {one: [to for to in ways[one] if to in component] for one in component}
        if any(len({*to}) < len(to) for to in inner.values()):
            return True
        if _meets_again(inner, part.characters):
            return True
    return False


def _meets_again(ways: dict[int, list[int]], characters: dict[int, int]) -> bool:
    """Whether two different paths with one text have the same start and the same end, within a component."""
    # many states have equal successors, such as the last states of alternatives
    same: dict[tuple[int, ...], int] = {}
    number = {one: same.setdefault(tuple(to), len(same)) for one, to in ways.items()}
    next_of: dict[tuple[int, int], list[tuple[int, int]]] = {}
    reached: dict[tuple[int, int], list[tuple[int, int]]] = {}
    stack, seen, compared = [(one, one) for one in ways], set[tuple[int, int]](), 0
    while stack:
        pair = stack.pop()
        if pair in seen:
            continue
        seen.add(pair)
        key = number[pair[0]], number[pair[1]]
        reached.setdefault(key, []).append(pair)
        if key not in next_of:
            compared += len(ways[pair[0]]) * len(ways[pair[1]])
            if compared > MAX_PAIRS:
                return True
            next_of[key] = list(_next_pairs(pair, ways, characters))
            stack.extend(next_of[key])
    behind: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for key, pairs in next_of.items():
        for pair in pairs:
            behind.setdefault(pair, []).append(key)
    stack, done, used = [(one, one) for one in ways], set[tuple[int, int]](), set[tuple[int, int]]()
    while stack:
        pair = stack.pop()
        if pair in done:
            continue
        done.add(pair)
        if pair[0] != pair[1]:
            return True
        for key in behind.get(pair, ()):
            if key not in used:
                used.add(key)
                stack.extend(reached[key])
    return False


def _next_pairs(
    pair: tuple[int, int], ways: dict[int, list[int]], characters: dict[int, int]
) -> Iterator[tuple[int, int]]:  # fmt: skip
    for one, other in product(ways[pair[0]], ways[pair[1]]):
        if characters[one] & characters[other]:
            yield (one, other) if one <= other else (other, one)


def _components(ways: dict[int, list[int]]) -> list[set[int]]:
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
    components, done = [], set()
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
            components.append(component)
    return components
