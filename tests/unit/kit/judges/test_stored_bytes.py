"""A golden file of a stored format is written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.judges.stored_bytes import stored_bytes


def test_what_an_earlier_version_wrote_is_never_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "v1" / "packet.bin"
    monkeypatch.delenv("MILLPOND_GOLDEN", raising=False)
    with pytest.raises(FileNotFoundError):
        stored_bytes(path, b"first")
    monkeypatch.setenv("MILLPOND_GOLDEN", "write")
    assert stored_bytes(path, b"first") == b"first"
    assert stored_bytes(path, b"second") == path.read_bytes() == b"first"
