"""The error tree: its codes, and its two journeys (pickle, and text through Spark)."""

from __future__ import annotations

import errno
import os
import pickle
import re
from pathlib import Path

import pyarrow as pa
import pytest

from millpond import errors
from millpond.errors import CorruptError, DiskFullError, MillpondError, from_text, of_machine
from millpond.log.locations.local_folder import LocalFolder


def _family(root: type[MillpondError]) -> list[type[MillpondError]]:
    return [root, *(below for child in root.__subclasses__() for below in _family(child))]


ALL = [kind for kind in _family(MillpondError) if kind.__module__ == errors.__name__]
LEAVES = [kind for kind in ALL if not kind.__subclasses__()]


def test_codes_are_unique_and_well_formed() -> None:
    codes = [kind.code for kind in ALL]
    assert len(LEAVES) >= 10
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"MP-[A-Z]+(-[A-Z]+)*", code) for code in codes)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_pickling_keeps_everything(kind: type[MillpondError]) -> None:
    error = kind("Segment 7 is short.", "Restore it from a copy.")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.what, again.cure, str(again)) == (error.what, error.cure, str(error))


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_the_code_survives_as_text(kind: type[MillpondError]) -> None:
    error = kind("It broke.", "Mend it.")
    again = from_text(f"PythonException: \n  File x.py\nmillpond.errors.{kind.__name__}: {error}\n\tat org")
    assert type(again) is kind
    assert str(again) == f"[{kind.code}] It broke. Mend it."


def test_the_cure_of_a_flattened_error_is_restored_too() -> None:
    error = CorruptError("The part -> of it => is bad.", "Restore it.")
    error.flattened = True
    again = from_text(f"PythonException: Traceback\n  File x.py\nmillpond.errors.CorruptError: {error}\n\tat org")
    assert again is not None
    assert (again.what, again.cure) == (error.what, error.cure)
    assert str(again) == "[MP-CORRUPT] The part -> of it => is bad. Restore it."


def test_an_error_that_is_raised_again_is_not_wrapped_twice() -> None:
    once = from_text(str(CorruptError("Bad digest.", "Restore it.")))
    assert once is not None
    assert str(from_text(str(once))) == str(once) == "[MP-CORRUPT] Bad digest. Restore it."


def test_other_text_holds_no_error() -> None:
    assert from_text("java.lang.OutOfMemoryError: Java heap space") is None
    assert from_text("") is None


def test_the_page_lists_every_code_in_the_order_of_the_tree() -> None:
    page = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(MP-[A-Z-]+)` \| ([^|]+) \| ([^|]*)\|$", page, re.MULTILINE)
    assert [code for code, _, _ in rows] == [kind.code for kind in ALL]
    leaves = {kind.code for kind in LEAVES}
    assert all(cure.strip() for code, _, cure in rows if code in leaves)


@pytest.mark.parametrize(("error", "code"), [
    (OSError(errno.ENOSPC, "No space left on device"), "MP-DISK"),
    (OSError(errno.EDQUOT, "Disk quota exceeded"), "MP-DISK"),
    (OSError(errno.EFBIG, "File too large"), "MP-DISK"),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), "MP-MEMORY"),
    (MemoryError(), "MP-MEMORY"),
    (pa.ArrowMemoryError("malloc of size 64 failed"), "MP-MEMORY"),
])  # fmt: skip
def test_what_the_machine_lacks_has_a_code_and_a_cure(error: Exception, code: str) -> None:
    found = of_machine(error)
    assert found is not None and found.code == code and found.cure


def test_a_local_folder_that_is_full_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = LocalFolder(tmp_path)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError, match="Make room"):
        folder.create("record", b"bytes")


def test_a_notebook_shows_an_error_in_one_line() -> None:
    error = CorruptError("The column `amuont` does not exist.", "Did you mean `amount`?")
    assert error._render_traceback_() == [str(error)], "IPython calls this instead of printing a traceback"
