"""The web console in Chromium: the sign-in, each page, changes and their undo, an expired session, a dead leader.

`MILLPOND_SCREENSHOTS=docs/images` also writes the pictures of the docs.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
from pyspark.sql import SparkSession

from kit.inputs.required_services import skip_without
from kit.programs.forked_program import ForkedProgram
from kit.programs.shared_java import joining
from kit.servers.chromium import chromium_binary
from kit.servers.kafka_server import KafkaServer
from kit.servers.servers import free_ports, until
from millpond.clock import now_us
from millpond.connections import VARIABLE
from millpond.control.diagnose.plan_graph import QUERY
from millpond.errors import MillpondError
from millpond.service.api.client import Client
from millpond.service.api.service_files import Places
from millpond.service.api.sessions import SECONDS, Sessions
from millpond.service.console.layout import PAGES

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JOINED = Path(__file__).with_name("joined_session.py")
SPEND = """SELECT c, window(ts, '10 seconds').start AS start, count(*) AS n
FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 1 SECOND GROUP BY c, window(ts, '10 seconds')"""
TOPIC = "console-taps"
POND = f"""CREATE TABLE tx (ts TIMESTAMP, c STRING, v BIGINT) USING parquet OPTIONS (path 'in');
CREATE TABLE taps (ts TIMESTAMP, c STRING) USING kafka
OPTIONS (subscribe '{TOPIC}', format 'json', startingOffsets 'earliest') TBLPROPERTIES ('dead.path' = 'dead');
DECLARE VARIABLE least BIGINT DEFAULT 40;
CREATE STREAMING TABLE spend USING subscribers AS {SPEND};
CREATE STREAMING TABLE big USING subscribers AS {SPEND.replace("GROUP", "WHERE v >= :least GROUP")};
CREATE STREAMING TABLE tapped USING noop AS SELECT c FROM STREAM taps;
CREATE STREAMING TABLE each USING noop AS SELECT c FROM STREAM tx;
"""
WAIT_MS = 120_000
SCHEMES: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")


class Served:
    """A pond that a process serves, which joins the Java machine of the tests."""

    def __init__(self, folder: Path, spark: SparkSession, kafka: KafkaServer) -> None:
        self.folder, self.pond, self.kafka, self._spark = folder, folder / "tx.pond", kafka, spark
        self.url = f"http://127.0.0.1:{free_ports(1)[0]}"
        (folder / "in").mkdir()
        (folder / "tx.sql").write_text(POND)
        (folder / "connections.json").write_text(json.dumps({"test": {"servers": kafka.servers, "topics": [TOPIC]}}))
        kafka.create(TOPIC)
        self.write(0, 1200)
        self.process: ForkedProgram | None = None

    def write(self, minute: int, events: int) -> None:
        """Write the events of a minute as a file."""
        times = [minute * 60_000_000 + i * 60_000_000 // events for i in range(events)]
        columns = {"ts": pa.array(times, pa.timestamp("us", "UTC")), "c": [f"c{i % 4}" for i in range(events)],
                   "v": pa.array(range(events), pa.int64())}  # fmt: skip
        pq.write_table(pa.table(columns), self.folder / "in" / ".draft")
        (self.folder / "in" / ".draft").rename(self.folder / "in" / f"{minute}.parquet")

    def start(self) -> None:
        """Start the service, and wait until it has read all events or continues after them."""
        self.process = self._run(self.url)
        until(self._leads, "the service leads")

    @contextmanager
    def standby(self) -> Iterator[Client]:
        """Another service of the pond, which stands by; gives its client."""
        url = f"http://127.0.0.1:{free_ports(1)[0]}"
        process = self._run(url)
        try:
            with Client(url, Places(self.pond).known_secret()) as client:
                until(lambda: role_of(client) == "standby", "the service stands by")
                yield client
        finally:
            process.kill()
            process.wait(60)

    def _run(self, url: str) -> ForkedProgram:
        words = [str(JOINED), "serve", "tx.sql", "--patience", "4", "--listen", url.removeprefix("http://")]
        path = os.pathsep.join([str(JOINED.parent), os.environ["PYTHONPATH"]])
        with (self.folder / "log").open("ab") as log:
            return ForkedProgram(
                words, stdout=log, stderr=log, cwd=self.folder,
                env=os.environ | {"PYTHONPATH": path, VARIABLE: "connections.json"} | joining(self._spark),
            )  # fmt: skip

    def kill(self) -> None:
        """Kill the service."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(60)

    def client(self) -> Client:
        return Client.of(self.pond)

    def _leads(self) -> bool:
        try:
            return self.client().url == self.url and self.client().status().epoch >= 0
        except MillpondError:
            return False


def role_of(client: Client) -> str | None:
    """The role of a service; None: it does not answer yet."""
    with suppress(MillpondError):
        return client.health().role
    return None


@pytest.fixture(scope="module")
def served(
    spark: SparkSession, kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("console"), spark, kafka_server)
    made.start()
    yield made
    made.kill()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Chromium for the tests of this file; an error where MILLPOND_REQUIRE names it, as in CI, and there is none."""
    binary = chromium_binary()
    skip_without("chromium", "no Chromium in the PATH: `apt-get install chromium`" if binary is None else None)
    with sync_playwright() as driver:
        # its sandbox needs rights that containers do not have; it visits pages of these tests only
        browser = driver.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page(chromium: Browser, served: Served) -> Iterator[Page]:
    """A page that has signed in, all of whose requests went to the service."""
    shown = chromium.new_context(viewport={"width": 1100, "height": 720}).new_page()
    shown.set_default_timeout(WAIT_MS)
    expect.set_options(timeout=WAIT_MS)
    requested = set[str]()
    shown.on("request", lambda request: requested.add(request.url))
    shown.goto(served.url)
    expect(shown).to_have_title("Millpond")
    assert not (found := violations(shown)), found
    shown.get_by_label("Token").fill("a-token-that-is-wrong")
    shown.get_by_label("Token").press("Enter")
    expect(shown.get_by_role("alert")).to_contain_text("not the token")
    shown.get_by_label("Token").fill(Places(served.pond).known_secret())
    shown.get_by_label("Token").press("Enter")
    expect(shown.get_by_role("heading", name="Overview")).to_be_visible()
    yield shown
    elsewhere = {url for url in requested if not url.startswith((served.url, "data:", "blob:"))}
    assert not elsewhere, elsewhere


def picture(page: Page, name: str, busy: Served | None = None) -> None:
    """Write a picture of the page for the docs, if they are requested; of a `busy` pond after 40 more epochs."""
    if folder := os.environ.get("MILLPOND_SCREENSHOTS"):
        for minute in range(1, 41) if busy else ():
            busy.write(minute, 20_000 + 5_000 * (minute % 7))
            page.wait_for_timeout(1000)
        page.wait_for_timeout(1000)  # the chart and the fonts
        page.screenshot(path=Path(folder) / f"{name}.png")


def go(page: Page, served: Served, path: str, heading: str) -> None:
    """Open a page as users do: by its link in the header, or by the address of a query."""
    if "/" in path:
        page.goto(f"{served.url}/console/{path}")
    else:
        page.get_by_role("navigation", name="Pages").get_by_role("link", name=heading, exact=True).click()
    expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()


NODE = """name => {
  const canvas = document.querySelector("canvas");
  const chart = getElement(Number(canvas.closest(".nicegui-echart").id.slice(1))).chart;
  const series = chart.getModel().getSeriesByIndex(0), data = series.getData();
  const node = data.getItemLayout(data.indexOfName(name)), whole = canvas.getBoundingClientRect();
  return [node.x + node.dx / 2 + series.layoutInfo.x + whole.x, node.y + node.dy / 2 + series.layoutInfo.y + whole.y];
}"""
"""The middle of a node of the graph, in pixels of the page."""


def versions(served: Served, name: str) -> int:
    return next(query.version for query in served.client().queries() if query.name == name)


def estimate(page: Page, field: str, text: str) -> None:
    """Fill in the field of a form, and request the estimate of its change."""
    page.get_by_label(field).fill(text)
    page.get_by_role("button", name="Estimate").click()


def press(page: Page, wanted: Locator, key: str) -> None:
    """Press a key on an element that Tab reaches from where the keyboard is."""
    expect(wanted).to_be_enabled()
    for _ in range(60):
        if wanted.evaluate("one => one === document.activeElement"):
            page.keyboard.press(key)
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {wanted}")


def violations(page: Page, *, contrast: bool = True, only: str | None = None) -> list[str]:
    """What axe-core finds wrong with a page, and where; `only`: the one rule to check.

    `contrast`: not of a dialog, for which axe-core often takes the page behind the backdrop as the background.
    """
    options: dict[str, Any] = {"rules": {"color-contrast": {"enabled": contrast}}}
    if only is not None:
        options["runOnly"] = only
    found = Axe().run(page, options=options).response["violations"]
    return [f"{rule['id']}: {node['html'][:200]}" for rule in found for node in rule["nodes"]]


def apply(page: Page, effect: str | re.Pattern[str]) -> None:
    """Confirm a change after its dry run, whose text contains `effect`."""
    dialog = page.get_by_role("dialog").last
    expect(dialog).to_contain_text(effect)
    dialog.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("button", name="Apply")).to_have_count(0)


def test_a_session_is_a_cookie_that_scripts_and_other_sites_do_not_get(page: Page, served: Served) -> None:
    (cookie,) = page.context.cookies()
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and cookie["name"].startswith("millpond-")
    link = served.client().console_link()
    first, second = httpx.get(link), httpx.get(link)
    assert (first.status_code, second.status_code) == (200, 401), "a link signs in once"
    assert "httponly" in first.headers["set-cookie"].lower() and "set-cookie" not in second.headers


def test_the_pages_show_the_pond(page: Page, served: Served) -> None:
    go(page, served, "", "Overview")
    expect(page.get_by_text("leader", exact=True)).to_be_visible()
    expect(page.get_by_role("term").first).to_have_text("This process")
    assert page.get_by_role("definition").first.evaluate("one => getComputedStyle(one).wordBreak") == "normal"
    expect(page.get_by_role("region", name="Sources")).to_contain_text(f"{TOPIC} 0")
    expect(page.get_by_role("region", name="Streams")).to_contain_text("1970-01-01 00:00:59.95Z")
    expect(page.get_by_role("region", name="Streams")).to_contain_text("with Arrow")
    expect(page.get_by_role("term").filter(has_text="Events since this process leads")).to_be_visible()
    expect(page.get_by_role("region", name="Sinks and view")).not_to_contain_text("read:")
    expect(page.get_by_role("definition").filter(has_text=re.compile(r"^[\d.,]+ kB$"))).to_be_visible()
    go(page, served, "queries", "Queries")
    table = page.get_by_role("region", name="Queries")
    expect(page.get_by_text("1-4 of 4")).to_be_visible()
    expect(table.get_by_role("row", name="each")).to_contain_text("1,200")
    expect(page.get_by_text("are counted since this process leads")).to_be_visible()
    page.get_by_label("Name or state").fill("spe")
    expect(table.get_by_role("link")).to_have_text(["spend"])
    table.get_by_role("link", name="spend").click()
    expect(page.get_by_text("GROUP BY c, window(ts, '10 seconds')")).to_be_visible()
    page.get_by_role("tab", name="Rows").click()
    expect(page.get_by_role("region", name="Rows")).to_contain_text("c1")
    picture(page, "console_query")
    page.get_by_role("tab", name="Why").click()
    expect(page.get_by_text("rows of closed windows")).to_be_visible()
    page.get_by_role("tab", name="History").click()
    expect(page.get_by_role("region", name="Changes")).to_be_visible()
    go(page, served, "graph", "Graph")
    expect(page.get_by_text("4 of 4 queries")).to_be_visible()
    page.get_by_role("button", name="What is shared").click()
    expect(page.get_by_text("tx is read once: c, ts, v")).to_be_visible()
    page.get_by_role("button", name="What is shared").click()
    picture(page, "console_graph")
    page.mouse.click(*page.evaluate(NODE, f"{QUERY}spend"))
    expect(page).to_have_url(f"{served.url}/console/queries/spend")
    go(page, served, "epochs", "Epochs")
    expect(page.get_by_text(re.compile(r"Record \d+: [\d,]+ ms, 1,200 events"))).to_be_visible()
    expect(page.get_by_role("region", name="Steps")).to_contain_text("append")
    picture(page, "console_epochs")
    go(page, served, "history", "History")
    expect(page.get_by_text("Nothing was changed since the pond was created.")).to_be_visible()
    go(page, served, "dead-letters", "Dead letters")
    expect(page.get_by_text("No dead letter was written yet.")).to_be_visible()
    go(page, served, "queries/nothing", "nothing")
    expect(page.get_by_role("alert")).to_contain_text("There is no query")
    go(page, served, "", "Overview")
    picture(page, "console_overview", busy=served)


def test_changes_are_estimated_made_and_undone(page: Page, served: Served) -> None:
    names = [query.name for query in served.client().queries()]
    go(page, served, "queries", "Queries")
    page.get_by_role("button", name="Add a query").click()
    page.get_by_label("Name", exact=True).fill("more")
    estimate(page, "SELECT", "SELECT * FROM text.`/etc/passwd`")
    expect(page.get_by_role("alert").filter(has_text="MP-")).to_be_visible()
    page.get_by_role("button", name="Cancel").last.click()
    estimate(page, "SELECT", SPEND)
    apply(page, "complete")
    assert [query.name for query in served.client().queries()] == sorted([*names, "more"])
    assert served.client().history(1)[0].who.startswith("console@127.0.0.1")
    page.get_by_role("button", name="Undo").click()
    apply(page, re.compile("at once"))
    assert [query.name for query in served.client().queries()] == names
    go(page, served, "queries/big", "big")
    page.get_by_role("button", name="Pause").click()
    apply(page, "at once")
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    apply(page, "at once")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    go(page, served, "parameters", "Parameters")
    page.get_by_role("button", name="Set least", exact=True).click()
    estimate(page, "Value, as JSON", "41")
    apply(page, "next epoch")
    assert [one.value for one in served.client().params()] == [41]
    page.get_by_role("button", name="Unset least").click()
    page.get_by_role("button", name="Apply").last.click()
    expect(page.get_by_role("alert").filter(has_text="uses the parameter least")).to_be_visible()
    page.get_by_role("button", name="Cancel").last.click()
    go(page, served, "history", "History")
    expect(page.get_by_role("region", name="Changes")).to_contain_text("resume big")


def test_a_version_is_altered_and_undone_and_a_query_is_dropped(page: Page, served: Served) -> None:
    go(page, served, "queries", "Queries")
    page.get_by_role("button", name="Add a query").click()
    page.get_by_label("Name", exact=True).fill("brief")
    estimate(page, "SELECT", SPEND)
    apply(page, "complete")
    go(page, served, "queries/brief", "brief")
    figures = page.get_by_role("definition")
    page.get_by_role("button", name="Alter").click()
    estimate(page, "SELECT", f"{SPEND} HAVING count(*) > 5")
    expect(page.get_by_role("dialog").last).to_contain_text("at once")
    assert versions(served, "brief") == 1, "an estimate changes nothing"
    apply(page, "at once")
    expect(page.get_by_text("HAVING count(*) > 5", exact=False)).to_be_visible()
    expect(figures.filter(has_text="2, windowed")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    apply(page, "at once")
    expect(figures.filter(has_text="3, windowed")).to_be_visible()
    expect(page.get_by_text("HAVING")).to_have_count(0)
    page.get_by_role("button", name="Drop").click()
    apply(page, "at once")
    expect(page.get_by_role("alert")).to_contain_text("There is no query")
    expect(page.get_by_role("button", name="Drop")).to_have_count(0)
    expect(page.get_by_role("button", name="Undo")).to_have_count(0)
    assert "brief" not in [query.name for query in served.client().queries()]


def test_a_shadow_is_compared_promoted_and_undone(page: Page, served: Served) -> None:
    go(page, served, "queries/spend", "spend")
    page.get_by_role("button", name="Shadow").click()
    estimate(page, "SELECT", f"{SPEND} HAVING count(*) > 30")
    apply(page, "at once")
    expect(page.get_by_role("button", name="Promote the shadow")).to_be_visible()
    expect(page.get_by_role("button", name="Shadow", exact=True)).to_have_count(0)
    page.get_by_role("tab", name="Shadow").click()
    expect(page.get_by_text("HAVING count(*) > 30", exact=False)).to_be_visible()
    served.write(50, 120)
    served.write(51, 120)
    expect(page.get_by_text(re.compile(r"[1-9]\d* are only the query's"))).to_be_visible()
    page.get_by_role("button", name="Promote the shadow").click()
    apply(page, "at once")
    expect(page.get_by_role("button", name="Roll back")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    apply(page, "at once")
    page.get_by_role("button", name="Promote the shadow").click()
    apply(page, "at once")
    page.get_by_role("button", name="Roll back").click()
    apply(page, "at once")
    page.get_by_role("button", name="Discard the shadow").click()
    apply(page, "at once")
    expect(page.get_by_role("button", name="Shadow", exact=True)).to_be_visible()
    expect(page.get_by_text("The query has no shadow.")).to_be_visible()


def test_dead_letters_are_shown_and_sent_again_once(page: Page, served: Served) -> None:
    go(page, served, "dead-letters", "Dead letters")
    served.kafka.produce(TOPIC, [(0, b"k", b"{not json"), (0, b"k", None)])
    letters = page.get_by_role("region", name="Dead letters", exact=True)
    expect(letters).to_contain_text("the value is not a JSON object")
    expect(letters).to_contain_text("the record has no value")
    value = page.get_by_role("region", name="Newest dead letters")
    expect(value).to_contain_text("{not json")
    page.get_by_role("textbox", name="Reason").fill("NO value")
    expect(letters).not_to_contain_text("the value is not a JSON object")
    expect(value).not_to_contain_text("{not json")
    expect(value).to_contain_text("(no value)")
    page.get_by_role("button", name="Replay the record has no value").click()
    expect(page.get_by_role("dialog").last).to_contain_text("sends 1 dead letter again")
    page.get_by_role("button", name="Cancel").last.click()
    go(page, served, "dead-letters", "Dead letters")  # a closing dialog moves the focus, so a text may stay uncleared
    page.get_by_role("button", name="Replay taps").click()
    expect(page.get_by_role("dialog").last).to_contain_text("sends 2 dead letters again")
    assert len(served.kafka.read(TOPIC)) == 2, "an estimate sends nothing"
    apply(page, "sends 2 dead letters again")
    again = served.kafka.read(TOPIC)[2:]
    assert [one.headers["millpond-replay"] for one in again] == [f"{TOPIC}-0@{n}".encode() for n in range(2)]
    expect(page.get_by_text(f"{TOPIC}-0 at 3")).to_be_visible()  # they are dead again
    expect(letters.get_by_role("row").filter(has_text="sent 20")).to_have_count(2)
    expect(letters).to_contain_text("by console@127.0.0.1")
    page.get_by_role("checkbox", name="Only those that no replay has sent").click()
    expect(letters.get_by_role("row").filter(has_text="sent 20")).to_have_count(0)
    expect(letters).to_contain_text("the record has no value")
    expect(value).not_to_contain_text(f"{TOPIC}-0 at 1")


def test_a_pond_is_scaled_and_scaled_back(page: Page, served: Served) -> None:
    before = served.client().status().instances
    go(page, served, "", "Overview")
    page.get_by_label("Instances").fill(str(before + 1))
    page.get_by_role("button", name="Scale").click()
    expect(page.get_by_role("dialog").last).to_contain_text("buckets with about")
    assert served.client().status().instances == before, "an estimate changes nothing"
    apply(page, "buckets with about")
    until(lambda: served.client().status().instances == before + 1, "the pond has one more instance")
    page.get_by_role("button", name="Undo").click()
    apply(page, "state moves")
    until(lambda: served.client().status().instances == before, "the pond has its instances again")


def test_each_page_is_accessible_and_fits_a_narrow_screen(page: Page, served: Served) -> None:
    """Names, roles and contrast are what axe-core checks. Only tables may be wider than the screen: they scroll."""
    size = page.viewport_size
    page.set_viewport_size({"width": 360, "height": 640})
    found = list[str]()
    try:
        for path, heading in [*PAGES, ("queries/spend", "spend")]:
            go(page, served, path, heading)
            for scheme in SCHEMES:
                page.emulate_media(color_scheme=scheme)
                expect(page.locator("body")).to_have_class(re.compile(f"body--{scheme}"))
                page.wait_for_function("!document.getAnimations().some(one => one instanceof CSSTransition)")
                # names and roles are the same in both
                some = violations(page) if scheme == SCHEMES[0] else violations(page, only="color-contrast")
                found += [f"{heading}, {scheme}: {one}" for one in some]
                wide = page.evaluate("document.documentElement.scrollWidth")
                found += [f"{heading}, {scheme}, is {wide} pixels wide"] if wide > 360 else []
            page.emulate_media(color_scheme=SCHEMES[0])
    finally:
        page.emulate_media(color_scheme=SCHEMES[0])
        page.set_viewport_size(size)
    assert not found, "\n".join(found)


def test_a_change_can_be_made_with_the_keyboard(page: Page, served: Served) -> None:
    go(page, served, "queries/big", "big")
    press(page, page.get_by_role("button", name="Pause"), "Enter")
    dialog = page.get_by_role("dialog").last
    expect(dialog).to_contain_text("at once")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    press(page, page.get_by_role("button", name="Pause"), "Enter")
    press(page, dialog.get_by_role("button", name="Apply"), "Space")
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    press(page, page.get_by_role("button", name="Undo"), "Enter")
    expect(dialog).to_contain_text("at once")
    assert not (found := violations(page, contrast=False)), found
    press(page, dialog.get_by_role("button", name="Apply"), "Enter")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    press(page, page.get_by_role("tab", name="Text"), "ArrowRight")
    press(page, page.get_by_role("tab", name="Rows"), "Enter")
    expect(page.get_by_role("region", name="Rows")).to_be_visible()


def test_a_page_of_a_standby_refuses_changes_and_continues_when_it_leads(page: Page, served: Served) -> None:
    """It has the session of the leader's page, because both services have the same token."""
    with served.standby() as standby:
        go(page, served, "", "Overview")
        expect(page.get_by_role("definition").filter(has_text=standby.url)).to_be_visible()
        other = page.context.new_page()
        other.goto(f"{standby.url}/console/queries/big")
        expect(other.get_by_role("heading", name="big", exact=True)).to_be_visible()
        other.get_by_role("button", name="Pause").click()
        expect(other.get_by_role("dialog").get_by_role("alert")).to_contain_text(f"Ask the leader at {served.url}")
        other.get_by_role("button", name="Cancel").click()
        other.goto(f"{standby.url}/console/")
        expect(other.get_by_text("standby", exact=True)).to_be_visible()
        served.kill()
        expect(page.get_by_text("Connection lost.")).to_be_visible()
        expect(other.get_by_text("leader", exact=True)).to_be_visible()
        other.goto(f"{standby.url}/console/queries/big")
        other.get_by_role("button", name="Pause").click()
        apply(other, "at once")
        other.get_by_role("button", name="Undo").click()
        apply(other, "at once")
        other.close()
    served.start()
    expect(page.get_by_text("Connection lost.")).to_be_hidden()


def test_sign_out_ends_the_session(chromium: Browser, served: Served) -> None:
    context = chromium.new_context()
    left = context.new_page()
    left.route("**/_nicegui/**/*.js", lambda _: None)  # scripts that are still loaded
    left.goto(served.client().console_link(), wait_until="commit")
    expect(left.locator("#app")).to_be_visible()
    assert left.locator("#app").evaluate("one => getComputedStyle(one, '::before').content") == '"Loading …"'
    left.unroute("**/_nicegui/**/*.js")
    left.reload()
    expect(left.get_by_role("heading", name="Overview")).to_be_visible()
    (cookie,) = context.cookies()
    left.get_by_role("button", name="Sign out").click()
    expect(left.get_by_label("Token")).to_be_visible()
    assert context.cookies() == []
    left.goto(f"{served.url}/console/queries")
    expect(left.get_by_label("Token")).to_be_visible()
    context.add_cookies([{"name": cookie["name"], "value": cookie["value"], "url": served.url}])
    left.goto(f"{served.url}/console/queries")
    expect(left.get_by_label("Token")).to_be_visible()  # a copy of the cookie is not accepted, either
    context.close()


def test_a_page_reports_a_lost_click_and_continues_with_the_next_leader(page: Page, served: Served) -> None:
    go(page, served, "queries", "Queries")
    expect(page.get_by_role("region", name="Queries").get_by_role("link").first).to_be_visible()  # it is connected
    served.kill()
    lost = page.get_by_text("Add a query: not sent, connection lost.")
    page.get_by_role("button", name="Add a query").click()
    expect(lost).to_be_visible()
    expect(page.get_by_text("Connection lost.", exact=True)).to_be_visible()
    served.start()
    expect(page.get_by_text("Connection lost.", exact=True)).to_be_hidden()
    expect(lost).to_have_count(0)
    go(page, served, "", "Overview")
    expect(page.get_by_text("leader", exact=True)).to_be_visible()


def test_an_expired_session_ends_at_the_sign_in(page: Page, served: Served) -> None:
    go(page, served, "queries", "Queries")
    (cookie,) = page.context.cookies()
    sessions = Sessions(Places(served.pond).known_secret(), lambda: now_us() - SECONDS["session"] * 1_000_000)
    page.context.add_cookies([{"name": cookie["name"], "value": sessions.issue("session"), "url": served.url}])
    expect(page.get_by_label("Token")).to_be_visible()
    page.get_by_label("Token").fill(Places(served.pond).known_secret())
    page.get_by_label("Token").press("Enter")
    expect(page.get_by_role("heading", name="Queries")).to_be_visible()  # and not the first page
