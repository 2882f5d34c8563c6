"""The page of dead letters: their number by topic and reason, the newest ones, and buttons that send them again."""

from __future__ import annotations

from functools import partial

from nicegui import events, ui
from starlette.concurrency import run_in_threadpool

from millpond.clock import utc
from millpond.control.diagnose.dead_letters import sent_text
from millpond.control.diagnose.letter_message import LetterKind
from millpond.runtime.packets.row_batches import is_timeless
from millpond.service.api.messages import Replay
from millpond.service.console.changes import Call, Proposal, propose
from millpond.service.console.layout import code, fill, page, pushed, table
from millpond.service.console.readings import LETTERS_SECONDS, Readings

_COLUMNS = ("stream", "topic", "reason", "letters", "first", "last", "sent")
_NONE = "No stream keeps dead letters. TBLPROPERTIES ('dead.path' = 'DIR') of a stream keeps them."


def show_dead_letters(readings: Readings) -> None:
    """Show the page."""
    with page("Dead letters"):
        with ui.row().classes("w-full items-center"):
            reason = ui.input("Reason").props("clearable outlined dense").classes("grow")
            pending = ui.checkbox("Only those that no replay has sent")
        counts = table("Dead letters", _COLUMNS, _COLUMNS[3:4], row_key="at")
        counts.add_slot(
            "body-cell-reason",
            '<q-td :props="props">{{ props.value }} <q-btn v-if="props.row.replayed" flat dense no-caps '
            """label="Replay" :aria-label="'Replay ' + props.value" """
            """@click="$parent.$emit('replay', props.row)" /></q-td>""",
        )
        buttons = ui.row().classes("w-full items-center")
        newest = code("Newest dead letters")
        offered: tuple[str, ...] | None = None

        async def update() -> None:
            nonlocal offered
            found, text, only_pending = await readings.dead_letters(), reason.value or "", pending.value
            chosen = [(one.stream, kind) for one in found for kind in one.kinds if _is_chosen(kind, text, only_pending)]
            nothing = "No dead letter is like that." if text or only_pending else "No dead letter was written yet."
            fill(counts, [_row(*one) | {"at": at} for at, one in enumerate(chosen)], nothing if found else _NONE)
            lines = [await run_in_threadpool(one.newest, text, pending=only_pending) for one in found]
            newest.text = "\n".join(line for of_stream in lines for line in of_stream)
            streams = tuple(one.stream for one in found if one.kinds)
            if streams != offered:
                offered = streams
                buttons.clear()
                with buttons:
                    for stream in streams:
                        change = Proposal(f"Replay the dead letters of {stream}", _replay(readings, stream, None))
                        ui.button(f"Replay {stream}", on_click=partial(propose, readings, change)).props("no-caps")

        async def replayed(event: events.GenericEventArguments) -> None:
            stream, wanted = event.args["stream"], event.args["reason"]
            title = f"Replay the dead letters of {stream} with the reason: {wanted}"
            await propose(readings, Proposal(title, _replay(readings, stream, wanted)))

        counts.on("replay", replayed)
        reason.on_value_change(update)
        pending.on_value_change(update)
        pushed(readings, LETTERS_SECONDS, update)


def _is_chosen(kind: LetterKind, reason: str, pending: bool) -> bool:
    return reason.lower() in kind.reason.lower() and not (pending and kind.sent)


def _row(stream: str, kind: LetterKind) -> dict[str, object]:
    shown = (stream, kind.topic, kind.reason, kind.letters, utc(kind.first_us), utc(kind.last_us), sent_text(kind.sent))
    offered = not any(one.topic is None for one in kind.sent) and not is_timeless(kind.reason)
    return dict(zip(_COLUMNS, shown, strict=True)) | {"replayed": offered}


def _replay(readings: Readings, stream: str, reason: str | None) -> Call:
    return lambda who, dry: readings.verbs.replay(stream, Replay(reason), who, dry)
