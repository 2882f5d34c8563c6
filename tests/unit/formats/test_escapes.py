"""Which characters of a text from outside a terminal gets as escapes."""

from __future__ import annotations

import pytest

from millpond.formats.escapes import printable

_ESCAPED = (
    *range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF,
    0xD800, 0xDFFF, *range(0xE0000, 0xE0080),
)  # fmt: skip


@pytest.mark.parametrize("code", _ESCAPED, ids=hex)
def test_what_commands_a_terminal_or_reorders_text_is_escaped(code: int) -> None:
    shown = printable(f"a{chr(code)}b")
    assert shown.isascii()
    assert shown.isprintable()
    assert shown.startswith("a\\")
    assert shown.encode().decode("unicode_escape").encode("utf-16", "surrogatepass") == f"a{chr(code)}b".encode(
        "utf-16", "surrogatepass"
    )


@pytest.mark.parametrize("text", ["é", "日本", "עברית", "👩\u200d🔬", "क्\u200dष", "\u00a0", "\U000e0100"], ids=ascii)
def test_other_text_is_shown(text: str) -> None:
    assert printable(text) == text
