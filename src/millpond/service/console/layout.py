"""The frame of each page of the console, and the parts that pages are made of."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from nicegui import ui

from millpond.errors import MillpondError
from millpond.service.console.readings import Readings
from millpond.service.server.browser.access import CONSOLE, SIGN_OUT

_log = logging.getLogger("millpond.service")

PAGES = (("", "Overview"), ("queries", "Queries"), ("graph", "Graph"), ("epochs", "Epochs"),
         ("parameters", "Parameters"), ("dead-letters", "Dead letters"), ("history", "History"))  # fmt: skip

LOADING = "Loading …"
"""What a page shows before its scripts have run, and a table before its rows are read."""

SINCE = "Rows, late and dead events are counted since this process leads."
PARTS = "ms and shared kB are a query's parts of what it shares with others; own kB is freed by a drop."
"""Says what the counts of queries cover."""

# The colours of texts and buttons contrast by 4.5 to 1 with what is behind them.
_STYLE = """
body { font-family: system-ui, sans-serif; --q-primary: #1d5c96 !important; }
body.body--dark { --q-primary: #8cbce8 !important; }
@layer overrides { body.body--dark .q-btn.bg-primary { color: #10202e !important; } }
header { background-color: #1d4f7c !important; }
.figures [role=definition] { overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: .75rem; width: 100%; }
.code { font-family: ui-monospace, monospace; white-space: pre; overflow-x: auto; max-width: 100%; width: 100%; }
.nicegui-content { max-width: 80rem; margin: 0 auto; }
/* NiceGUI says after a second that the browser does not support modules: a busy machine still loads them then */
body #esm-fallback { position: absolute; animation-delay: 60s; }
body #app:empty { display: block; padding: 4rem 1rem; }
#app:empty::before { content: "LOADING"; }
#lost-click { position: fixed; bottom: 1rem; left: 1rem; z-index: 9999; padding: .75rem; border-radius: 4px;
  background: #8c1d18; color: white; }
:focus-visible { outline: 2px solid currentColor; outline-offset: 2px; }
""".replace("LOADING", LOADING)

CHART_TEXT = "#767676"
"""The colour of texts in charts: it contrasts by 4.5 to 1 with white, and by 4.1 to 1 with the dark background."""

# NiceGUI tries to connect again and again: also after the session has expired, when only a visit leads to the sign-in.
_EXPIRED = f"""<script>setInterval(async () => {{
  if (!window.socket || window.socket.connected) return;
  const answer = await fetch("{CONSOLE}/favicon.ico", {{cache: "no-store"}}).catch(() => null);
  if (answer?.status === 401) location.reload();
}}, 2000);</script>"""

# A wide table scrolls in an inner element; a tab index lets the keyboard focus and scroll it.
_SCROLLED = """<script>new MutationObserver(() => {
  for (const part of document.querySelectorAll(".q-table__middle:not([tabindex])")) part.tabIndex = 0;
}).observe(document, {childList: true, subtree: true});</script>"""


# A click is lost if the service dies before it answers, or while the page is not connected. Any answer means that the
# click was received. The page is loaded again when a service answers, so the line stays until then.
_LOST_CLICKS = """<script>(() => {
  let sent = null;
  const say = name => {
    const line = document.getElementById("lost-click") ?? document.createElement("div");
    line.id = "lost-click";
    line.setAttribute("role", "alert");
    line.textContent = `${name}: not sent, connection lost. Try again when the page is connected.`;
    document.body.append(line);
    sent = null;
  };
  document.addEventListener("click", event => {
    const button = event.target.closest("button");
    if (!button || !window.socket) return;
    sent = button.getAttribute("aria-label") || button.textContent.trim();
    if (!window.socket.connected) say(sent);
  }, true);
  const started = setInterval(() => {
    if (!window.socket) return;
    clearInterval(started);
    window.socket.onAny(() => { sent = null; });
    window.socket.on("connect", () => document.getElementById("lost-click")?.remove());
    window.socket.on("disconnect", () => { if (sent) say(sent); });
  }, 100);
})();</script>"""

_NUMBER = {"align": "right", ":format": 'value => value?.toLocaleString("en-US")'}


@contextmanager
def page(title: str) -> Iterator[None]:
    """The frame of a page: links to all pages, the way out, and the heading."""
    ui.page_title(f"{title} - Millpond")
    ui.add_css(_STYLE)
    ui.add_head_html(_EXPIRED + _SCROLLED + _LOST_CLICKS)
    with ui.header().classes("items-center gap-4 py-2").props('role="banner"'):
        ui.link("Millpond", "/").classes("text-white text-lg font-bold no-underline")
        with ui.element("nav").classes("flex gap-4 grow flex-wrap").props('aria-label="Pages"'):
            for path, label in PAGES:  # NiceGUI puts CONSOLE before them
                ui.link(label, f"/{path}").classes("text-white")
        with ui.element("form").props(f'method="post" action="{SIGN_OUT}"'):
            leave = ui.element("input").props('type="submit" value="Sign out"')
            leave.classes("cursor-pointer underline bg-transparent")
    with ui.column().classes("w-full gap-4"):
        ui.label(title).classes("text-2xl").props('role="heading" aria-level="1"')
        yield


class Figures:
    """A grid of named figures."""

    def __init__(self) -> None:
        self._grid = ui.element("dl").classes("figures")
        self._values: dict[str, ui.label] = {}

    def show(self, figures: Mapping[str, str]) -> None:
        """Show these figures; those of the last call keep their places."""
        with self._grid:
            for name, value in figures.items():
                if name not in self._values:
                    with ui.card().classes("p-3 gap-0"):
                        ui.label(name).classes("text-sm opacity-70").props('role="term"')
                        self._values[name] = ui.label().classes("text-lg").props('role="definition"')
                self._values[name].text = value


def table(label: str, columns: Sequence[str], numbers: Sequence[str] = (), **options: Any) -> ui.table:
    """A table with a name for screen readers; the columns `numbers` are aligned to the right, with commas."""
    shown = [
        {"name": one, "label": one, "field": one, **(_NUMBER if one in numbers else {"align": "left"})}
        for one in columns
    ]
    made = ui.table(columns=shown, rows=[], **{"row_key": columns[0], **options}).classes("w-full")
    made.props["no-data-label"] = LOADING
    made.add_slot("no-data", "<span>{{ props.message }}</span>")
    return made.props(f'dense flat bordered wrap-cells title="{label}" role="region" aria-label="{label}"')


def fill(shown: ui.table, rows: Sequence[dict[str, Any]], empty: str) -> None:
    """Show rows in a table; `empty` says why there are none."""
    if shown.props["no-data-label"] != empty:
        shown.props["no-data-label"] = empty
    shown.rows = [*rows]


def code(label: str, text: str = "") -> ui.label:
    """An unchanged text in a fixed width, with a name for screen readers; the keyboard can scroll it."""
    made = ui.label(text).classes("code text-sm")
    return made.props(f'role="region" aria-label="{label}" tabindex="0"')


class Alert:
    """A line for an error; hidden while there is none."""

    def __init__(self) -> None:
        self._line = ui.label().classes("text-red-700 dark:text-red-300").props('role="alert"')
        self._line.visible = False

    def show(self, error: Exception | None) -> None:
        """Show an error, or nothing. An error that is not one of ours is logged too."""
        self._line.visible = error is not None
        text = "" if error is None else str(error)
        if error is not None and not isinstance(error, MillpondError):
            _log.error("a page of the console failed", exc_info=error)
            text = f"The service failed: {type(error).__name__}. Its log says more; please report it."
        self._line.text = text


def pushed(readings: Readings, seconds: float, update: Callable[[], Awaitable[None]]) -> None:
    """Update a page now, after each change from the console, and every some seconds while the page is open.

    An error is shown until the next update succeeds.
    """
    alert = Alert()

    async def run() -> None:
        try:
            await update()
        except MillpondError as error:
            alert.show(error)
        else:
            alert.show(None)

    ui.timer(seconds, run)
    readings.changed.subscribe(run)
