"""The page of dead letters: their number by topic and reason, the newest ones, and buttons that send them again."""

from __future__ import annotations

from functools import partial

from nicegui import events, ui

from millpond.runtime.packets.row_batches import is_timeless
from millpond.service.api.messages import Replay
from millpond.service.console.changes import Call, Proposal, propose
from millpond.service.console.layout import code, fill, page, pushed, table
from millpond.service.console.readings import LETTERS_SECONDS, Readings

_COLUMNS = ("stream", "topic", "reason", "letters", "first", "last")
_NONE = "No stream keeps dead letters. TBLPROPERTIES ('dead.path' = 'DIR') of a stream keeps them."


def show_dead_letters(readings: Readings) -> None:
    """Show the page."""
    with page("Dead letters"):
        counts = table("Dead letters", _COLUMNS, _COLUMNS[3:4], row_key="at")
        counts.add_slot(
            "body-cell-reason",
            '<q-td :props="props">{{ props.value }} <q-btn v-if="!props.row.timeless" flat dense no-caps '
            """label="Replay" :aria-label="'Replay ' + props.value" """
            """@click="$parent.$emit('replay', props.row)" /></q-td>""",
        )
        buttons = ui.row().classes("w-full items-center")
        newest = code("Newest dead letters")
        offered: tuple[str, ...] | None = None

        async def update() -> None:
            nonlocal offered
            found = await readings.dead_letters()
            rows = [(one.stream, *kind) for one in found for kind in one.kinds]
            shown = [
                dict(zip(_COLUMNS, map(str, row), strict=True)) | {"at": at, "timeless": is_timeless(row[2])}
                for at, row in enumerate(rows)
            ]
            fill(counts, shown, "No dead letter was written yet." if found else _NONE)
            newest.text = "\n".join(line for one in found for line in one.newest)
            streams = tuple(one.stream for one in found if one.kinds)
            if streams != offered:
                offered = streams
                buttons.clear()
                with buttons:
                    for stream in streams:
                        change = Proposal(f"Replay the dead letters of {stream}", _replay(readings, stream, None))
                        ui.button(f"Replay {stream}", on_click=partial(propose, readings, change)).props("no-caps")

        async def chosen(event: events.GenericEventArguments) -> None:
            stream, reason = event.args["stream"], event.args["reason"]
            title = f"Replay the dead letters of {stream} with the reason: {reason}"
            await propose(readings, Proposal(title, _replay(readings, stream, reason)))

        counts.on("replay", chosen)
        pushed(readings, LETTERS_SECONDS, update)


def _replay(readings: Readings, stream: str, reason: str | None) -> Call:
    return lambda who, dry: readings.verbs.replay(stream, Replay(reason), who, dry)
