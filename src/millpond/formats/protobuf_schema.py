"""Parses `.proto` text into the schemas of its messages, as far as decoding needs them.

Services, options, extensions and proto2 defaults are skipped, because they do not change the bytes of a field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types: they determine how the length of a field's value is encoded."""

WIRES = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool", "enum"), VARINT),
    **dict.fromkeys(("fixed64", "sfixed64", "double"), FIXED64),
    **dict.fromkeys(("fixed32", "sfixed32", "float"), FIXED32),
    **dict.fromkeys(("string", "bytes", "message"), BYTES),
}
"""The wire type of each kind of field."""

_TOKEN = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/ | (?P<token>"(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' | [\w.+-]+ | .)""",
    re.VERBOSE | re.DOTALL,
)
_LABELS = ("optional", "required", "repeated")
_SKIPPED = ("option", "reserved", "extensions")
_KNOWN = {
    "timestamp": "message Timestamp { int64 seconds = 1; int32 nanos = 2; }",
    "duration": "message Duration { int64 seconds = 1; int32 nanos = 2; }",
    "empty": "message Empty {}",
    "any": "message Any { string type_url = 1; bytes value = 2; }",
    "wrappers": " ".join(
        f"message {name}Value {{ {kind} value = 1; }}"
        for name, kind in (
            ("Double", "double"), ("Float", "float"), ("Int64", "int64"), ("UInt64", "uint64"), ("Int32", "int32"),
            ("UInt32", "uint32"), ("Bool", "bool"), ("String", "string"), ("Bytes", "bytes"),
        )
    ),
}  # fmt: skip


class ProtoError(Exception):
    """An invalid schema, or a field that does not fit a column; the text continues a sentence about the schema."""


class ProtoField(NamedTuple):
    """A field: `kind` is a key of `WIRES`; `type_name` is the full name of its type, if that is a message or an enum.

    `many`: whether it is repeated. `implicit`: whether an absent value means zero or empty; otherwise it is NULL.
    `choice`: the number of the oneof to which the field belongs, 0 for none.
    """

    name: str
    number: int
    kind: str
    type_name: str = ""
    many: bool = False
    implicit: bool = False
    choice: int = 0


class ProtoSchema(NamedTuple):
    """Messages, which of them are map entries, enums (number to name), and messages by their position in the text."""

    messages: dict[str, tuple[ProtoField, ...]]
    entries: frozenset[str]
    enums: dict[str, dict[int, str]]
    places: dict[tuple[int, ...], str]


def proto_schema(text: str, imported: Callable[[str], str | None] = lambda _name: None) -> ProtoSchema:
    """Parses a `.proto` text; `imported` returns imported texts by name.

    Raises:
        ProtoError: the text is invalid, or an import does not exist.
    """
    reader = _Reader()
    waiting, seen = [text], set()
    for place, one in enumerate(waiting):
        reader.read(one, main=place == 0)
        for name in reader.imports:
            if name in seen:
                continue
            seen.add(name)
            known = re.fullmatch(r"google/protobuf/(\w+)\.proto", name)
            found = imported(name)
            if found is None and known is not None and known[1] in _KNOWN:
                found = f'syntax = "proto3"; package google.protobuf; {_KNOWN[known[1]]}'
            if found is None:
                raise ProtoError(f"imports {name}, which is not there")
            waiting.append(found)
    return reader.schema()


class _Reader:
    """Parses texts; types are resolved when all texts have been read."""

    def __init__(self) -> None:
        self.imports: list[str] = []
        self._tokens: list[str] = []
        self._at = 0
        self._package = ""
        self._implicit = False
        self._choices = 0
        self._fields: dict[str, list[tuple[ProtoField, str]]] = {}
        self._entries: set[str] = set()
        self._enums: dict[str, dict[int, str]] = {}
        self._places: dict[tuple[int, ...], str] = {}

    def read(self, text: str, *, main: bool) -> None:
        self._tokens = [found["token"] for found in _TOKEN.finditer(text) if found["token"] is not None]
        self._at, self._package, self._implicit = 0, "", False
        messages = 0
        while self._at < len(self._tokens):
            word = self._next()
            if word in ("syntax", "edition"):
                self._expect("=")
                self._implicit = _unquoted(self._next()) == "proto3"
                self._expect(";")
            elif word == "package":
                self._package = f"{self._next()}."
                self._expect(";")
            elif word == "import":
                name = self._next()
                self.imports.append(_unquoted(self._next() if name in ("public", "weak") else name))
                self._expect(";")
            elif word == "message":
                self._message(self._package, (messages,) if main else None)
                messages += 1
            elif word == "enum":
                self._enum(self._package)
            elif word in ("service", "extend"):
                self._skip("}")
            elif word == "option":
                self._skip(";")
            elif word != ";":
                raise ProtoError(f"has the word {word} where none should be")

    def _message(self, scope: str, path: tuple[int, ...] | None) -> None:
        name = scope + self._next()
        self._fields[name] = []
        if path is not None:
            self._places[path] = name
        self._expect("{")
        inner = 0
        for word in self._block():
            if word == "message":
                self._message(f"{name}.", None if path is None else (*path, inner))
                inner += 1
            elif word == "enum":
                self._enum(f"{name}.")
            elif word == "oneof":
                self._choices += 1
                self._next()
                self._expect("{")
                for kind in self._block():
                    if kind == "option":
                        self._skip(";")
                    else:
                        self._field(name, kind, "", self._choices)
            elif word in _SKIPPED:
                self._skip(";")
            elif word == "extend":
                self._skip("}")
            elif word != ";":
                self._field(name, self._next() if word in _LABELS else word, word if word in _LABELS else "", 0)

    def _field(self, message: str, kind: str, label: str, choice: int) -> None:
        if kind == "group":
            raise ProtoError("has a group, which is not read")
        many = label == "repeated"
        if kind == "map":
            kind, many = self._entry(message), True
        name = self._next()
        self._expect("=")
        number = self._number()
        self._skip(";")
        implicit = self._implicit and not (label or choice)
        self._fields[message].append((ProtoField(name, number, "", "", many, implicit, choice), kind))

    def _entry(self, message: str) -> str:
        """Parses the types of a map, and adds the message of its entries."""
        self._expect("<")
        key = self._next()
        self._expect(",")
        value = self._next()
        self._expect(">")
        name = f"{message}.{len(self._entries)}map"
        self._entries.add(name)
        parts = ((ProtoField("key", 1, "", implicit=True), key), (ProtoField("value", 2, "", implicit=True), value))
        self._fields[name] = [*parts]
        return f".{name}"

    def _enum(self, scope: str) -> None:
        found = self._enums.setdefault(scope + self._next(), {})
        self._expect("{")
        for word in self._block():
            if word in _SKIPPED:
                self._skip(";")
            elif word != ";":
                self._expect("=")
                found.setdefault(self._number(), word)
                self._skip(";")

    def schema(self) -> ProtoSchema:
        """The schema of all texts, with the types of fields resolved."""
        messages = {}
        for message, fields in self._fields.items():
            resolved = []
            for field, kind in fields:
                if kind in WIRES and kind not in ("enum", "message"):
                    resolved.append(field._replace(kind=kind))
                    continue
                full_name = self._resolved(kind, message)
                resolved_kind = "enum" if full_name in self._enums else "message"
                resolved.append(field._replace(kind=resolved_kind, type_name=full_name))
            messages[message] = tuple(resolved)
        return ProtoSchema(messages, frozenset(self._entries), self._enums, self._places)

    def _resolved(self, kind: str, scope: str) -> str:
        """The full name of a type, searched from the innermost scope outwards."""
        names = [kind[1:]] if kind.startswith(".") else []
        if not names:
            parts = scope.split(".")
            names = [".".join([*parts[:count], kind]) for count in range(len(parts), -1, -1)]
        for name in names:
            if name in self._fields or name in self._enums:
                return name
        raise ProtoError(f"has the type {kind}, which is not there")

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise ProtoError("ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, word: str) -> None:
        found = self._next()
        if found != word:
            raise ProtoError(f"has {found} where {word} should be")

    def _number(self) -> int:
        word = self._next()
        try:
            return int(word, 0)
        except ValueError:
            raise ProtoError(f"has {word} where a number should be") from None

    def _block(self) -> Iterator[str]:
        """Yields the first word of each statement up to the end of a block; the caller reads its other words."""
        while (word := self._next()) != "}":
            yield word

    def _skip(self, end: str) -> None:
        """Skips to behind the next `end` outside of nested brackets."""
        depth = 0
        while True:
            word = self._next()
            depth += (word in "{[(") - (word in "}])")
            if word == end and depth <= 0:
                return


def _unquoted(word: str) -> str:
    return word[1:-1]
