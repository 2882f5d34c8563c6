"""Regular expressions that mean the same to Java, with which Spark matches, and to RE2, with which Arrow matches.

These are sequences and alternatives of ASCII characters, classes of them, and groups that are not repeated. RE2
prefers alternatives and repetitions in the order in which Java tries them, so groups match the same. Left out are
`.` and `$`, which treat the ends of lines differently, repeated groups, which capture a different repetition in RE2,
flags, back-references, look-around, and escapes other than of punctuation and the classes of digits and word
characters.
"""

from __future__ import annotations

import re

_PUNCTUATION = r"\\[.\\/$^*+?()\[\]{}|:\-&=#%@!,;'\"<> ]"
_CLASS = rf"\[\^?(?:[a-zA-Z0-9](?:-[a-zA-Z0-9])?|[_/:=#%@!,;'\"<> .*+?()|$]|&(?!&)|{_PUNCTUATION}|\\[dw])+\]"
_REPEATED = r"(?:[*+?]|\{\d{1,2}(?:,\d{0,2})?\})\??"
_TOKEN = re.compile(
    rf"(?P<atom>[a-zA-Z0-9_/:=#%@!,;'\"<> &~-]|{_PUNCTUATION}|\\[dw]|{_CLASS})(?:{_REPEATED})?"
    rf"|(?P<open>\((?:\?:)?)|(?P<close>\))(?![*+?{{])|(?P<or>\|)|(?P<start>\^)(?![*+?{{])"
)


def extracting(pattern: str, group: int) -> str | None:
    """The pattern in which only the group with a number is captured, under the name `g`; group 0 is the whole match.

    None if the pattern is not shared, or has no such group.

    >>> extracting("(&|^)id=([^&]*)", 2)
    '(?:&|^)id=(?P<g>[^&]*)'
    """
    parts, opened, groups, at = [], 0, 0, 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            return None
        at, text = token.end(), token[0]
        if token["open"]:
            opened += 1
            if text == "(":
                groups += 1
                text = "(?P<g>" if groups == group else "(?:"
        elif token["close"]:
            opened -= 1
            if opened < 0:
                return None
        parts.append(text)
    if opened or groups < group:
        return None
    return f"(?P<g>{''.join(parts)})" if group == 0 else "".join(parts)


def is_shared(pattern: str) -> bool:
    """Whether a pattern matches the same texts in Java and in RE2."""
    return extracting(pattern, 0) is not None
