"""One host for the tests of a module, and functions of `sample_functions`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.programs.forked_functions import FORKING
from millpond.model.functions import UserFunction
from millpond.runtime.functions import process
from millpond.runtime.functions.host import FunctionHost

Declare = Callable[..., UserFunction]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.fixture
def new_interpreters() -> None:
    """Children start as they do outside of tests."""


@pytest.fixture(autouse=True)
def _forked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "new_interpreters" not in request.fixturenames:
        monkeypatch.setattr(process, "subprocess", FORKING)


@pytest.fixture(scope="module")
def host() -> Iterator[FunctionHost]:
    with FunctionHost() as made:
        yield made


@pytest.fixture
def declare() -> Declare:
    def made(attribute: str, kind: str = "holistic", **rest: object) -> UserFunction:
        given = {"takes": ("double",), "returns": "double", "deadline_ms": 30_000, **rest}
        return UserFunction(attribute.lower(), "1", f"sample_functions:{attribute}", kind, **given)  # type: ignore[arg-type]

    return made
