"""Splits SQL text into tokens, for clauses that Spark's parser does not have."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from millpond.spark.catalyst.text_span import COMMENT, QUOTED_NAME, STRING, TextSpan

_TOKEN = re.compile(
    rf"""(?P<skip>\s+ | {COMMENT})
      | (?P<text>{STRING})
      | (?P<name>{QUOTED_NAME} | [^\W\d]\w*)
      | (?P<number>\d[\w.]*)
      | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """A token of SQL text, and where it begins; `kind`: `text`, `name`, `number` or `mark`."""

    kind: str
    text: str
    start: int

    @property
    def word(self) -> str:
        """The token in upper case."""
        return self.text.upper()

    @property
    def end(self) -> int:
        """The position after the token."""
        return self.start + len(self.text)


Replacement = tuple[str, int]
"""A text, and the number of tokens in whose place it is put."""


def tokens_of(text: str) -> list[Token]:
    """The tokens of a text, without spaces and comments.

    >>> [token.text for token in tokens_of("A.x /* /* b */ c */ > 'a b' -- why")]
    ['A', '.', 'x', '>', "'a b'"]
    >>> [token.kind for token in tokens_of(r"r'\\' || 'a'")]
    ['text', 'mark', 'mark', 'text']
    >>> [token.text for token in tokens_of("$$it's$$ > $a$ $$ ' $a$")]
    ["$$it's$$", '>', "$a$ $$ ' $a$"]
    """
    found = _TOKEN.finditer(text)
    return [Token(str(one.lastgroup), one.group(), one.start()) for one in found if one.lastgroup != "skip"]


def source_of(text: str, tokens: Sequence[Token]) -> str:
    """The part of a text that consists of these tokens."""
    return text[tokens[0].start : tokens[-1].end] if tokens else ""


def position_of(text: str, token: Token) -> TextSpan:
    """The position of a token, for messages."""
    return TextSpan(text, token.start, token.end)


def closing(tokens: Sequence[Token], at: int) -> int | None:
    """The place of the parenthesis that closes the one at a place; None: it is never closed."""
    depth = 0
    for i in range(at, len(tokens)):
        depth += (tokens[i].text == "(") - (tokens[i].text == ")")
        if depth == 0:
            return i
    return None


def listed(tokens: Sequence[Token]) -> list[list[Token]]:
    """The elements of a list, which commas outside of parentheses separate."""
    found, depth = list[list[Token]]([[]]), 0
    for token in tokens:
        depth += (token.text in "([") - (token.text in ")]")
        if token.text == "," and depth == 0:
            found.append([])
        else:
            found[-1].append(token)
    return found if tokens else []


def starts_with(tokens: Sequence[Token], at: int, words: str) -> bool:
    """Whether some words are at a place."""
    wanted = words.split()
    return [token.word for token in tokens[at : at + len(wanted)]] == wanted


def replaced(text: str, tokens: Sequence[Token], replace: Callable[[Sequence[Token]], Replacement | None]) -> str:
    """The source of tokens, of which `replace` replaces those at the beginning of what it is given.

    It is called at each name that is not a part of a name with dots.
    """
    made, at, position = list[str](), 0, tokens[0].start if tokens else 0
    while at < len(tokens):
        qualified = at > 0 and tokens[at - 1].text == "."
        found = None if qualified or tokens[at].kind != "name" else replace(tokens[at:])
        put, count = (tokens[at].text, 1) if found is None else found
        made += [text[position : tokens[at].start], put]
        at += count
        position = tokens[at - 1].end
    return "".join(made)
