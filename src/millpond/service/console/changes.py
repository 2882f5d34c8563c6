"""The dialogs of the console that change the pond: each shows what the change would do before it is made.

They call the methods of `HostedPond`, as the routes of the API do. After a change that has an inverse, its message
offers to undo it, with the same dialog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import msgspec
from nicegui import ui
from starlette.concurrency import run_in_threadpool

from millpond.errors import RequestError
from millpond.followers.sinks.kinds import remote_names
from millpond.service.api.messages import (
    STATE_CHANGES,
    Changed,
    Instances,
    NewQuery,
    Parameter,
    Priced,
    QueryShown,
    Value,
    Version,
    check_sink_names,
)
from millpond.service.console.layout import Alert
from millpond.service.console.readings import Readings
from millpond.service.server.app import named
from millpond.service.terminal.text import change_lines, change_text

Call = Callable[[str, bool], Changed | Priced]
"""Makes a change, for a requester, or only prices it (dry run)."""

_SAYS = {
    "drop": "Drop",
    "pause": "Pause",
    "resume": "Resume",
    "promote": "Promote the shadow",
    "rollback": "Roll back",
    "discard": "Discard the shadow",
}
_INVERSE = {"pause": "resume", "resume": "pause", "promote": "rollback", "rollback": "promote"}
_OFFERED = {
    "running": ("pause", "drop"),
    "paused": ("resume", "drop"),
    "shadowed": ("promote", "discard", "drop"),
    "promoted": ("rollback", "discard", "drop"),
}
"""The changes without a text that a state allows; the others are refused."""

_DONE = "change-done"
"""Marks the line that says what was done; a page has one at most."""


class Proposal(NamedTuple):
    """A change: what it is called, how it is made, and its inverse if it has one. `priced`: it has a dry run."""

    title: str
    call: Call
    undo: Proposal | None = None
    priced: bool = True


async def propose(readings: Readings, change: Proposal, done: Callable[[], object] = lambda: None) -> None:
    """Show what a change would do, and make it if that is confirmed; then call `done`."""
    with _dialog(change.title) as dialog, ui.card().classes("w-full"):
        ui.label(change.title).classes("text-lg").props('role="heading" aria-level="2"')
        effect = ui.label("Estimating …").props('aria-live="polite"').classes("whitespace-pre-line")
        alert = Alert()
        with ui.row():
            confirm = ui.button("Apply").props("no-caps")
            ui.button("Cancel", on_click=dialog.close).props("flat no-caps")
    confirm.enabled = not change.priced
    dialog.on("hide", dialog.delete)
    dialog.open()

    async def apply() -> None:
        confirm.enabled = False
        alert.show(None)
        effect.text = "The change is made between two epochs …"
        try:
            made = await run_in_threadpool(change.call, requester, False)
        except Exception as error:
            effect.text, confirm.enabled = "", True
            alert.show(error)
            return
        readings.forget()
        dialog.close()
        done()
        with page:
            _say_done(readings, change_text(made), change.undo)

    requester, page = f"console@{ui.context.client.ip}", ui.context.client.content
    confirm.on_click(apply)
    if not change.priced:
        effect.text = "It is in force from the next epoch on."
        return
    try:
        effect.text = "\n".join(change_lines(await run_in_threadpool(change.call, requester, True)))
        confirm.enabled = True
    except Exception as error:
        effect.text = ""
        alert.show(error)


def _dialog(title: str) -> ui.dialog:
    """A dialog of the page, rather than of the button that opens it: that may be replaced while the dialog is open.

    The title contains texts of users, so it must not be parsed as a string of properties.
    """
    with ui.context.client.content:
        made = ui.dialog()
    made.props["aria-label"] = title
    return made


def _say_done(readings: Readings, text: str, undo: Proposal | None) -> None:
    """Say what was done, in a line that offers to undo it. It replaces the line of the previous change."""
    page = ui.context.client.content
    for earlier in [one for one in page.default_slot.children if _DONE in one.classes]:
        earlier.delete()
    with ui.card().classes(f"{_DONE} fixed bottom-4 left-4 z-50 max-w-xl").props('role="status"') as line, ui.row():
        ui.label(text)

        async def back() -> None:
            line.delete()
            if undo is not None:
                with page:  # the line was removed
                    await propose(readings, undo)

        if undo is not None:
            ui.button("Undo", on_click=back).props("no-caps dense")
        ui.button("Close", on_click=line.delete).props("flat no-caps dense")


def state_change(readings: Readings, kind: str, name: str) -> Proposal:
    """One of the changes that need no text."""

    def to(kind: str, undo: Proposal | None) -> Proposal:
        return Proposal(
            f"{_SAYS[kind]}: {name}", lambda who, dry: readings.verbs.change_state(kind, name, who, dry), undo
        )

    inverse = _INVERSE.get(kind)
    return to(kind, None if inverse is None else to(inverse, None))


def actions(readings: Readings, query: QueryShown) -> None:
    """The buttons of the changes that the state of a query allows."""

    def button(label: str, proposal: Callable[[], object]) -> None:
        ui.button(label, on_click=proposal).props("no-caps outline dense padding='xs sm'")

    for kind in _OFFERED.get(query.state, STATE_CHANGES[:1]):
        button(_SAYS[kind], partial(propose, readings, state_change(readings, kind, query.name)))
    button("Alter", lambda: _new_version(readings, query, "alter"))
    if query.shadow is None:
        button("Shadow", lambda: _new_version(readings, query, "shadow"))


def _version(readings: Readings, kind: str, name: str, text: str, undo: Proposal | None = None) -> Proposal:
    title = f"{'Alter' if kind == 'alter' else 'Shadow of'} {name}"
    return Proposal(title, lambda who, dry: readings.verbs.version(kind, name, Version(text), who, dry), undo)


def _new_version(readings: Readings, query: QueryShown, kind: str) -> None:
    """Ask for the text of a new version, or of a shadow."""

    def proposal() -> Proposal:
        if kind == "alter":
            undo = _version(readings, kind, query.name, query.text)
        else:
            undo = state_change(readings, "discard", query.name)
        return _version(readings, kind, query.name, text.value, undo)

    with _form(readings, f"{'New version' if kind == 'alter' else 'Shadow'} of {query.name}", proposal):
        text = _text(query.text)


def add_query(readings: Readings) -> None:
    """Ask for a new query."""

    def proposal() -> Proposal:
        query = NewQuery(
            named(str(name.value or "").strip()), text.value or "", sink.value or None, serve.value,
            incomplete=incomplete.value,
        )  # fmt: skip
        check_sink_names(query.sink, None, unknown=True)
        undo = state_change(readings, "drop", query.name)
        return Proposal(f"Add {query.name}", lambda who, dry: readings.verbs.add(query, who, dry), undo)

    with _form(readings, "A new query", proposal):
        name = ui.input("Name").props("outlined dense autofocus").classes("w-full")
        text = _text("")
        sink = ui.select({"": "none", **{one: one for one in sorted(remote_names())}}, value="", label="Sink")
        sink.props("outlined dense").classes("w-full")
        serve = ui.checkbox("Serve the latest row of each key")
        incomplete = ui.checkbox("Also emit windows that are open now, marked as incomplete")


def set_parameter(readings: Readings, parameter: Parameter) -> None:
    """Ask for a new value of a live parameter."""

    def to(given: Value, undo: Proposal | None) -> Proposal:
        call: Call = lambda who, _: readings.verbs.set(parameter.name, given, who)  # noqa: E731
        return Proposal(f"Set {parameter.name} to {given.value}", call, undo, priced=False)

    def proposal() -> Proposal:
        return to(_value(str(value.value)), None if parameter.value is None else to(Value(parameter.value), None))

    with _form(readings, f"Value of {parameter.name} ({parameter.type})", proposal):
        value = ui.input("Value, as JSON", value=msgspec.json.encode(parameter.value).decode())
        value.props("outlined dense autofocus").classes("w-full")


_TYPES_OF_JSON = ("boolean", "bigint", "double", "string")
"""Types that a parameter gets from its first value; one of another type cannot be made again by its value alone."""


def unset_parameter(readings: Readings, parameter: Parameter) -> Proposal:
    """Remove a live parameter that no query uses."""
    value, name = parameter.value, parameter.name
    made: Call = lambda who, _: readings.verbs.set(name, Value(value, new=True), who)  # type: ignore[arg-type]  # noqa: E731
    restores = value is not None and parameter.source is None and parameter.type in _TYPES_OF_JSON
    undo = Proposal(f"Set {name} to {value}", made, priced=False) if restores else None
    return Proposal(f"Unset {name}", lambda who, _: readings.verbs.unset(name, who), undo, priced=False)


def _value(text: str) -> Value:
    """The value of a parameter.

    >>> _value("[1, 2]").value, _value('"a"').value
    ([1, 2], 'a')

    Raises:
        RequestError: the text is not JSON, or not a value that a parameter may have.
    """
    try:
        return Value(msgspec.json.decode(text, type=bool | int | float | str | list[int | float | str]))
    except msgspec.MsgspecError as error:
        raise RequestError(f"{text[:80]} is no value: {error}.", 'Write 1.5, true, "text" or ["a", "b"].') from error


@contextmanager
def _form(readings: Readings, title: str, proposal: Callable[[], Proposal]) -> Iterator[None]:
    """A dialog with the fields that are made inside, which then proposes the change; it stays until that is made."""
    with _dialog(title) as dialog, ui.card().classes("w-full max-w-3xl"):
        ui.label(title).classes("text-lg").props('role="heading" aria-level="2"')
        yield
        alert = Alert()

        async def estimate() -> None:
            try:
                await propose(readings, proposal(), dialog.close)
                alert.show(None)
            except Exception as error:
                alert.show(error)

        with ui.row():
            ui.button("Estimate", on_click=estimate).props("no-caps")
            ui.button("Cancel", on_click=dialog.close).props("flat no-caps")
    dialog.on("hide", dialog.delete)
    dialog.open()


def _text(value: str) -> ui.textarea:
    field = ui.textarea("SELECT", value=value.strip()).props("outlined autogrow input-class=font-mono")
    return field.classes("w-full")


class ScaleForm:
    """A field for the number of instances."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings
        with ui.row().classes("items-center"):
            self._number = ui.number("Instances", min=1, precision=0).props("outlined dense").classes("w-32")
            ui.button("Scale", on_click=self._submit).props("no-caps outline")

    async def _submit(self) -> None:
        if self._number.value is None:
            return
        wanted, now = int(self._number.value), (await self._readings.status()).instances
        await propose(self._readings, self._to(wanted, self._to(now, None)))

    def _to(self, wanted: int, undo: Proposal | None) -> Proposal:
        verbs = self._readings.verbs
        title = f"Scale to {wanted} instances"
        return Proposal(title, lambda who, dry: verbs.scale(Instances(wanted), who, dry), undo)
