"""Small pieces of text about plans."""

from __future__ import annotations

from millpond.model.expressions import Expression, columns_of, render


def count_of(number: int, word: str) -> str:
    """So many of something.

    >>> count_of(1, "query"), count_of(2, "query"), count_of(2, "day")
    ('1 query', '2 queries', '2 days')
    """
    if number == 1:
        return f"1 {word}"
    return f"{number} {word[:-1] + 'ies' if word.endswith('y') and word != 'day' else word + 's'}"


def predicate_text(filter_: Expression) -> str:
    """A filter for people."""
    text = render(filter_)
    return text if columns_of(filter_) else f"{text} (the same for every event)"
