"""Counts the calls of a method."""

from __future__ import annotations

from typing import Any


class CountedCalls:
    """Counts the calls of the method `name` of a class, until pytest's `patch` is undone."""

    def __init__(self, patch: Any, owner: type, name: str) -> None:
        self.count, method = 0, getattr(owner, name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return method(*args, **kwargs)

        patch.setattr(owner, name, counting)
