"""A store of files in the memory of a test, which may remove some."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millpond.state.ports.file_store import FileStore, Parts


class MemoryFiles(FileStore):
    """Files in a dictionary."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def put(self, name: str, parts: Parts, *, kept: bool = False) -> None:
        """See `FileStore.put`; every file is kept."""
        self._files[name] = b"".join(parts)

    def get_many(self, names: Sequence[str]) -> list[bytes | None]:
        return [self._files.get(name) for name in names]

    def take_many(self, names: Sequence[str]) -> list[bytes | None]:
        return self.get_many(names)

    def lacking(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name not in self._files]

    def names(self) -> set[str]:
        return set(self._files)

    def remove_many(self, names: Iterable[str]) -> None:
        for name in names:
            self._files.pop(name, None)
