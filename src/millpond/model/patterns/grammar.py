"""Parses row patterns: regular expressions over variables, as in PATTERN of MATCH_RECOGNIZE."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from millpond.errors import QueryTypeError

MAX_ELEMENTS = 500
"""The most elements of a pattern whose bounded quantifiers are written out."""
MAX_VARIABLES = 60
"""The most variables of a pattern; whether an event meets their conditions is stored in the bits of an integer."""

_TOKEN = re.compile(r"\s*([A-Za-z_]\w*|\{\s*\d*\s*(?:,\s*\d*\s*)?\}|[()|?*+]|\S)")
_BOUNDS = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
_CURE = "Write variables, ( ), |, and the quantifiers ? * + {n} {n,} {n,m}, such as 'A B+ (C | D)?'."


class Single(NamedTuple):
    """One event that meets the condition of a variable."""

    variable: str


class Series(NamedTuple):
    """Patterns one after the other."""

    parts: tuple[Element, ...]


class Choice(NamedTuple):
    """One of several patterns; the first one is preferred."""

    parts: tuple[Element, ...]


class Repeat(NamedTuple):
    """A pattern from `least` to `most` times (None: any number); a reluctant one prefers fewer."""

    part: Element
    least: int
    most: int | None
    reluctant: bool


Element: TypeAlias = Single | Series | Choice | Repeat


def variables_of(element: Element) -> tuple[str, ...]:
    """The variables of a pattern, each once, in the order of its text."""
    if isinstance(element, Single):
        return (element.variable,)
    parts: Iterable[Element] = (element.part,) if isinstance(element, Repeat) else element.parts
    return tuple(dict.fromkeys(name for part in parts for name in variables_of(part)))


def head(element: Element) -> str | None:
    """The variable as which the first event of each match is matched, and no other event; None if there is none.

    >>> head(parse("A B+")), head(parse("A+ B")), head(parse("A B A"))
    ('A', None, None)
    """
    first, *rest = element.parts if isinstance(element, Series) else (element,)
    if isinstance(first, Single) and all(first.variable not in variables_of(part) for part in rest):
        return first.variable
    return None


def parse(text: str) -> Element:
    """The tree of a pattern.

    >>> parse("A B+?").parts[1]
    Repeat(part=Single(variable='B'), least=1, most=None, reluctant=True)

    Raises:
        QueryTypeError: the pattern does not parse, can match no event at all, or is too large.
    """
    parser = _Parser(text)
    element = parser.choice()
    if parser.token is not None:
        raise parser.refused()
    if size(element) > MAX_ELEMENTS or len(variables_of(element)) > MAX_VARIABLES:
        raise QueryTypeError(
            f"The pattern {text} has {size(element):,} elements with its quantifiers written out, and "
            f"{len(variables_of(element))} variables; {MAX_ELEMENTS} and {MAX_VARIABLES} are allowed.",
            "Use smaller quantifiers.",
        )
    if may_be_empty(element):
        raise QueryTypeError(
            f"The pattern {text} can match no event at all.", "Let it need an event: + instead of *, for example."
        )
    return element


def may_be_empty(element: Element) -> bool:
    """Whether a pattern matches no events."""
    if isinstance(element, Single):
        return False
    if isinstance(element, Repeat):
        return not element.least or may_be_empty(element.part)
    return (all if isinstance(element, Series) else any)(map(may_be_empty, element.parts))


def size(element: Element) -> int:
    """The number of elements with bounded quantifiers written out."""
    if isinstance(element, Single):
        return 1
    if isinstance(element, Repeat):
        return size(element.part) * max(element.least, 1 if element.most is None else element.most, 1)
    return sum(map(size, element.parts))


class _Parser:
    """Parses by recursive descent; `token` is the next token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = iter(_TOKEN.findall(text))
        self._depth = 0
        self.token: str | None = next(self._tokens, None)

    def refused(self) -> QueryTypeError:
        where = "at its end" if self.token is None else f"at `{self.token}`"
        return QueryTypeError(f"The pattern {self._text} does not parse {where}.", _CURE)

    def choice(self) -> Element:
        parts = [self._sequence()]
        while self.token == "|":
            self._next()
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self) -> Element:
        parts = []
        while self.token is not None and self.token not in ("|", ")"):
            parts.append(self._repeated())
        if not parts:
            raise self.refused()
        return parts[0] if len(parts) == 1 else Series(tuple(parts))

    def _repeated(self) -> Element:
        part = self._primary()
        if self.token is None or not (self.token in "?*+" or self.token.startswith("{")):
            return part
        least, most = self._bounds(self.token)
        self._next()
        reluctant = self.token == "?"
        if reluctant:
            self._next()
        if most is None and may_be_empty(part):
            raise QueryTypeError(
                f"The pattern {self._text} repeats, without a limit, a part that can match no event.",
                "Let one of the two quantifiers need an event: (A B*)* instead of (A? B*)*, for example.",
            )
        return Repeat(part, least, most, reluctant)

    def _bounds(self, token: str) -> tuple[int, int | None]:
        if token in "?*+":
            return int(token == "+"), 1 if token == "?" else None
        found = _BOUNDS.fullmatch(token)
        if found is None or not (found[1] or found[3]):
            raise self.refused()
        least = int(found[1] or 0)
        most = (int(found[3]) if found[3] else None) if found[2] else least
        if most is not None and (most < least or not most):
            raise self.refused()
        return least, most

    def _primary(self) -> Element:
        token = self.token
        if token == "(":
            self._depth += 1
            if self._depth > 50:
                raise QueryTypeError(f"The pattern {self._text} nests too deep.", "Simplify it.")
            self._next()
            inside = self.choice()
            if self.token != ")":
                raise self.refused()
            self._depth -= 1
            self._next()
            return inside
        if token is None or not (token[0].isalpha() or token[0] == "_"):
            raise self.refused()
        self._next()
        return Single(token.upper())

    def _next(self) -> None:
        self.token = next(self._tokens, None)
