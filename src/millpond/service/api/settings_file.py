"""Reads the file of settings, `millpond.toml`: every key is checked, and an error names the file, line and key."""

from __future__ import annotations

import difflib
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from millpond.connections import is_secret, secret_at
from millpond.errors import MillpondError, SetupError
from millpond.local_path import check_own_link, local_path
from millpond.service.api.settings import BY_NAME, PREFIX, SETTINGS, Setting

if sys.version_info >= (3, 11):
    from tomllib import TOMLDecodeError, loads
else:
    from tomli import TOMLDecodeError, loads

FILE = "millpond.toml"
"""The file that is read from the current folder."""

VARIABLE = "MILLPOND_CONFIG"
"""The environment variable that names another file."""

_NEARLY = 0.94
"""Other variables are less similar, such as MILLPOND_PORT, which Kubernetes sets for a service `millpond`."""

_PASSWORD = re.compile(r"([\w+.-]+://)[^/@]*:[^/@]+@")
_STARTING = {"spark.master": "--master", "spark.driver.memory": "--memory"}


def read_settings(given: Path | None = None) -> dict[str, Any]:
    """The settings of a file, by name.

    Without `given` the file is the one that `MILLPOND_CONFIG` names, else `millpond.toml` of this folder, if any. The
    value of a setting that may be repeated is a list of texts, also if the file has a table of names and values.

    Raises:
        SetupError: the file cannot be read, belongs to another user, or has a wrong key or value.
    """
    named = given or os.environ.get(VARIABLE) or None
    path = local_path(named or FILE, "The file of settings")
    shown = str(named or FILE)
    try:
        if named is None:
            check_own_link(path)
        with open(path, encoding="utf-8", opener=None if named else _at_once) as file:
            of = os.fstat(file.fileno())
            text = file.read() if named or stat.S_ISREG(of.st_mode) else None
    except FileNotFoundError as error:
        if named is None:
            return {}
        raise SetupError(f"There is no file {shown}.", "`millpond init` writes a file of settings.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{shown} cannot be read: {error}.", "Name a file of settings, in UTF-8.") from error
    if text is None:
        raise SetupError(f"{shown} is not a regular file.", "Remove it, or name a file of settings with --config.")
    if named is None and of.st_uid not in (os.getuid(), 0):
        raise SetupError(f"{shown} belongs to another user.", f"If you trust it, name it: --config {shown}.")
    return dict(_checked(text, shown))


def _at_once(path: str, flags: int) -> int:
    """Open a file without waiting: a FIFO would wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def check_environment() -> None:
    """Check the variables of settings.

    Raises:
        SetupError: a variable has a wrong value, or a name that is nearly that of a setting.
    """
    known = {setting.variable for setting in SETTINGS}
    for name in sorted(os.environ):
        ours = name.startswith(PREFIX) and name not in known
        if near := difflib.get_close_matches(name, known if ours else (), 1, _NEARLY):
            raise SetupError(f"There is no variable {name}.", f"Did you mean {near[0]}?")
    for setting in SETTINGS:
        if (text := os.environ.get(setting.variable)) and (fault := setting.fault_of_text(text)) is not None:
            raise SetupError(f"The variable {setting.variable} {fault}: {_shown(text)}.", setting.help)


def export(settings: Mapping[str, Any]) -> None:
    """Set the environment variables of settings without an option, unless they are set."""
    for name, value in settings.items():
        if BY_NAME[name].option is None:
            os.environ.setdefault(BY_NAME[name].variable, str(value))


def named_pond() -> Path | None:
    """The pond's folder by the environment and the file of settings; None: they name none.

    Raises:
        SetupError: see `read_settings`.
    """
    settings = read_settings()
    for name in ("checkpoint", "file"):
        if given := os.environ.get(BY_NAME[name].variable) or settings.get(name):
            return Path(given) if name == "checkpoint" else Path(given).with_suffix(".pond")
    return None


def spark_settings(pairs: Iterator[str] | list[str]) -> tuple[tuple[str, str], ...]:
    """The settings of Spark from texts NAME=VALUE; where a secret is, `env:NAME` or `file:PATH` says in their place.

    Raises:
        SetupError: a name is no setting of Spark, another option sets it, or a secret is not given by reference.
    """
    found = []
    for pair in pairs:
        name, _, value = pair.partition("=")
        if not name.startswith("spark."):
            raise SetupError(f"{name} is not a setting of Spark.", "Write a name that begins with `spark.`.")
        if name in _STARTING:
            raise SetupError(f"{name} is set by {_STARTING[name]}.", f"Use {_STARTING[name]}.")
        found.append((name, secret_at(name, value) if is_secret(name) else value))
    return tuple(found)


def line_of(text: str, *path: str) -> int:
    """The line where the value of a key begins, counted from 1, in text that parses.

    >>> line_of('a = 1\\n[t]\\n# b = 1\\nb = [\\n 2]\\n', "t", "b"), line_of('a = 1\\n[t]\\nb = 2\\n', "t")
    (4, 2)
    """
    lines, before = text.splitlines(keepends=True), 0
    for count in range(1, len(lines) + 1):
        try:
            found: Any = loads("".join(lines[:count]))
        except TOMLDecodeError:  # a value goes on in the next line
            continue
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        if found is not None:
            break
        before = count
    return before + 1


def _checked(text: str, file: str) -> Iterator[tuple[str, Any]]:
    try:
        read = loads(text)
    except TOMLDecodeError as error:
        raise SetupError(f"{file} is not TOML: {error}.", "Correct it there.") from error

    def fail(what: str, cure: str, *path: str) -> NoReturn:
        raise SetupError(f"{file}, line {line_of(text, *path)}: {what}", cure)

    for key, value in read.items():
        setting = BY_NAME.get(key)
        if setting is None:
            near = difflib.get_close_matches(key.lower().replace("_", "-"), BY_NAME, 1, 0.7)
            fail(f"There is no setting `{key}`.", f"Did you mean `{near[0]}`?" if near else _all(), key)
        yield key, _values(setting, value, fail) if setting.many else _value(setting, value, fail)


def _shown(value: object) -> str:
    """A value for a message, without the password of an address."""
    return _PASSWORD.sub(r"\1…@", repr(value))


def _all() -> str:
    return f"Use one of {', '.join(setting.name for setting in SETTINGS)}."


def _value(setting: Setting, value: Any, fail: Callable[..., NoReturn], *path: str) -> Any:
    at = path or (setting.name,)
    if (fault := setting.fault(value)) is not None:
        shown = "" if len(at) > 1 else f": {_shown(value)}"  # the value of a pair may be a secret
        fail(f"`{'.'.join(at)}` {fault}{shown}.", setting.help, *at)
    if setting.name in ("store", "shard", "maven") and _PASSWORD.match(value):
        cure = "Write `env:NAME`, and set NAME." if setting.many else f"Put the address into {setting.variable}."
        fail(f"`{setting.name}` contains a password.", cure, *at)
    return value


def _values(setting: Setting, value: Any, fail: Callable[..., NoReturn]) -> list[str]:
    """The texts of a repeated setting: a list of them, or a table of NAME and value."""
    pairs = setting.metavar == "NAME=VALUE"
    if isinstance(value, dict) and pairs:
        leaves = _leaves(value) if setting.name == "conf" else (((name,), one) for name, one in value.items())
        found = {(setting.name, *path): f"{'.'.join(path)}={_text(setting, one)}" for path, one in leaves}
    elif isinstance(value, list) and not pairs:
        return [_value(setting, one, fail) for one in value]
    else:
        form = f"a table: [{setting.name}] and lines NAME = VALUE" if pairs else "a list"
        fail(f"`{setting.name}` is not {form}.", setting.help, setting.name)
    for path, pair in found.items():
        _value(setting, pair, fail, *path)
        if setting.name == "conf":
            try:
                spark_settings([pair])
            except MillpondError as error:
                fail(error.what, error.cure, *path)
    return list(found.values())


def _leaves(table: Mapping[str, Any], *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values of a table and of those in it: TOML reads `spark.a = 1` without quotes as a table."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, *path, name)
        else:
            yield (*path, name), value


def _text(setting: Setting, value: Any) -> str:
    """A value as it stands after `NAME=` on the command line."""
    if setting.name == "conf" and isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()
