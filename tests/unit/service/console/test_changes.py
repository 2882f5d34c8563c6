"""The dialogs of changes: texts of users in titles, and errors while a change is made. They need no browser."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from nicegui import Client, core, ui
from nicegui.page import page
from starlette.requests import Request

from millpond.service.api.messages import Changed
from millpond.service.console.changes import Proposal, propose
from millpond.service.console.readings import Readings

TITLE = 'Set least to x" innerHTML="<img src=x onerror=alert(1)>'


def on_page(work: Callable[[Client], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something on an empty page of a browser that never connects."""

    async def run() -> None:
        monkeypatch.setattr(core, "loop", asyncio.get_running_loop())
        request = Request({"type": "http", "client": ("10.0.0.1", 1), "path": "/", "headers": [], "query_string": b""})
        with Client(page("/"), request=request) as client:
            await work(client)

    asyncio.run(run())


def test_a_title_cannot_add_properties_to_its_dialog(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(client: Client) -> None:
        await propose(NO_READINGS, Proposal(TITLE, lambda who, dry: Changed("least", 1), priced=False))
        (dialog,) = [one for one in client.elements.values() if isinstance(one, ui.dialog)]
        assert dialog.props["aria-label"] == TITLE and "innerHTML" not in dialog.props

    on_page(work, monkeypatch)


def test_a_change_that_fails_can_be_applied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[str]()

    def call(who: str, _dry: bool) -> Changed:
        calls.append(who)
        raise OSError("the disk is full")

    async def work(client: Client) -> None:
        await propose(NO_READINGS, Proposal(TITLE, call, priced=False))
        (apply,) = [one for one in client.elements.values() if isinstance(one, ui.button) and one.text == "Apply"]
        for turn in range(2):
            assert apply.enabled
            (click,) = [one for one in apply._event_listeners.values() if one.type == "click"]
            apply._handle_event({"listener_id": click.id, "args": {}})
            for _ in range(6000):
                if len(calls) > turn and apply.enabled:
                    break
                await asyncio.sleep(0.01)
        texts = [one.text for one in client.elements.values() if isinstance(one, ui.label)]
        assert [one for one in texts if "OSError" in one]

    on_page(work, monkeypatch)
    assert calls == ["console@10.0.0.1"] * 2


class _NoReadings(Readings):
    """Readings of a pond that no dialog of these tests reads."""

    def __init__(self) -> None:
        pass


NO_READINGS = _NoReadings()
