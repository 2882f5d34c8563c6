"""A typed client of `millpond serve`: one method per verb, one exception class per error code."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

import httpx
import msgspec

from millpond.control.diagnose.letter_message import LetterKind
from millpond.control.diagnose.why_message import WIDEST, WhyShown
from millpond.errors import AccessError, MillpondError, NotServingError, RequestError, SetupError, of_code
from millpond.runtime.inspect.timeline import KEPT, Trace
from millpond.service.api.certificates import certificate_error, trusted_context, untrusting_context
from millpond.service.api.messages import (
    STATE_CHANGES,
    Changed,
    Differs,
    Emit,
    Event,
    Feeds,
    Found,
    FunctionShown,
    Health,
    Instances,
    LateBy,
    NewQuery,
    Parameter,
    Placed,
    Priced,
    Push,
    PushDone,
    QueryShown,
    Refusal,
    Relocation,
    Replay,
    Status,
    StreamShown,
    Value,
    Version,
    check_sink_names,
    not_allowed,
)
from millpond.service.api.notebook import Listed
from millpond.service.api.row_subscription import RowSubscription
from millpond.service.api.service_files import TOKEN_VARIABLE, URL_VARIABLE, only_pond, places_of
from millpond.service.api.sessions import Sessions
from millpond.service.api.user_name import user_name

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
_HEALTH_S = 5.0
"""The longest time in seconds until a service says whether it leads; then the next one is tried."""

_SILENT_S = 30.0
"""The longest time in seconds without an event of a subscription; the service sends one every ten seconds."""

_Params = dict[str, str | int | Sequence[str]]


class Client:
    """A client of the service at `url`, with its `token`. `certificate`: a PEM file to trust besides the system's.

    `url` may name several services of one pond, separated by commas: requests go to the one that leads. If it no longer
    answers or leads, the others are tried, and a request that was not made is sent to the new leader.

    Every method raises NotServingError if the service does not answer or does not lead, CertificateError if its
    certificate is not trusted, and otherwise the pond's own error, with its class and text. `who` (default: the user of
    this process) is stored in the history.

    Raises:
        SetupError: an address cannot be parsed, or the certificate cannot be read.
    """

    def __init__(
        self, url: str, token: str, *, certificate: str | os.PathLike[str] | None = None, who: str | None = None,
        timeout: float = 60.0, transport: httpx.BaseTransport | None = None,
    ) -> None:  # fmt: skip
        who = user_name() if who is None else who
        headers = {"authorization": f"Bearer {token}", "millpond-who": who.encode("ascii", "replace").decode()}
        self._urls = [one.strip().rstrip("/") for one in url.split(",") if one.strip()] or [url]
        self.url = self._urls[0]
        self._found = len(self._urls) == 1
        _check_addresses(self._urls)
        encrypted = any(httpx.URL(one).scheme == "https" for one in self._urls)
        self._http = httpx.Client(
            headers=headers, timeout=timeout, transport=transport, trust_env=False,
            verify=trusted_context(certificate) if encrypted else untrusting_context(),
        )  # fmt: skip

    @classmethod
    def of(
        cls, pond: str | os.PathLike[str] | None = None, *, url: str | None = None, token: str | None = None,
        certificate: str | os.PathLike[str] | None = None, who: str | None = None, timeout: float = 60.0,
    ) -> Client:  # fmt: skip
        """The client of the service of a pond's folder, or at `url`.

        If neither is given, `MILLPOND_URL` is the address. `MILLPOND_TOKEN` takes precedence over the folder's token.

        Raises:
            NotServingError: the pond was never served. AccessError: this user may not read its token.
            SetupError: neither a folder nor an address is given.
        """
        url = url or (os.environ.get(URL_VARIABLE) if pond is None else None)
        token = token or os.environ.get(TOKEN_VARIABLE)
        if pond is None and url is not None:
            if token is None:  # the token of a folder must be sent only to its own service
                raise AccessError(f"No token for {url}.", f"Give --token, or set {TOKEN_VARIABLE}.")
            return cls(url, token, certificate=certificate, who=who, timeout=timeout)
        places = places_of(pond if pond is not None else only_pond())
        if url is None:
            leader = places.known_leader()
            url, certificate = leader.url, certificate or leader.known_certificate
        return cls(url, token or places.known_secret(), certificate=certificate, who=who, timeout=timeout)

    def console_link(self) -> str:
        """A link that signs one browser in to the web console, within a minute."""
        token = self._http.headers["authorization"].partition(" ")[2]
        return f"{self.url}/sign-in?code={Sessions(token).issue('code')}"

    def health(self) -> Health:
        """Whether the service leads, stands by, starts or stops."""
        return self._get("health", Health)

    def status(self) -> Status:
        """The state of the pond."""
        return self._get("status", Status)

    def streams(self) -> Listed[StreamShown]:
        """The streams in force."""
        return Listed(self._get("streams", list[StreamShown]))

    def queries(self) -> Listed[QueryShown]:
        """The queries in force, by name."""
        return Listed(self._get("queries", list[QueryShown]))

    def show(self, name: str) -> QueryShown:
        """One query in force."""
        return self._get(f"queries/{_segment(name)}", QueryShown)

    def diff(self, name: str) -> Differs:
        """How the rows of a query and its shadow differ."""
        return self._get(f"queries/{_segment(name)}/diff", Differs)

    def why(self, name: str, *, width: int = WIDEST) -> WhyShown:
        """Why a query emits no rows, with the facts; `print` shows it as `millpond why` does.

        `width`: the most columns of its text, 60 to 100.
        """
        return self._get(f"queries/{_segment(name)}/why", WhyShown, {"width": width})

    def params(self) -> Listed[Parameter]:
        """The live parameters in force, by name."""
        return Listed(self._get("params", list[Parameter]))

    def functions(self, *, reload: bool = False) -> Listed[FunctionShown]:
        """The operator's functions and the queries that call them; `reload`: load new versions of their file first."""
        if reload:
            return Listed(self._call("POST", "functions/reload", list[FunctionShown]))
        return Listed(self._get("functions", list[FunctionShown]))

    def history(self, limit: int = 100) -> Listed[Event]:
        """The newest changes, the newest first."""
        return Listed(self._get("history", list[Event], {"limit": limit}))

    def trace(self, epochs: int = KEPT) -> Trace:
        """Where the time of the leader's newest epochs went; as JSON, Perfetto and Chrome open it."""
        return self._get("trace", Trace, {"epochs": epochs})

    def lookup(self, name: str, *key: object) -> Found:
        """The latest row of a served query for a key (its values in order, if necessary as text)."""
        return self._get(f"lookup/{_segment(name)}", Found, {"key": [str(value) for value in key]})

    def table(self, name: str, *, flat_windows: bool = False) -> pa.Table:
        """The latest rows of all keys of a served query; for pandas: `client.table("visits").to_pandas()`.

        `flat_windows`: a window `w` is two columns, `w_start` and `w_end`, by which a DataFrame can be grouped. The
        metadata of the schema names the record as of which all rows are.
        """
        from pyarrow.ipc import open_stream

        from millpond.runtime.rows.window_rows import with_flat_windows

        with open_stream(self._get(f"queries/{_segment(name)}/table", bytes)) as stream:
            rows = stream.read_all()
        return with_flat_windows(rows) if flat_windows else rows

    def placement(self) -> Placed:
        """Where the buckets of served rows are."""
        return self._get("placement", Placed)

    def add(
        self, name: str, text: str, *, sink: str | None = None, serve: bool = False,
        late: str | None = None, emit: str = "final", correct_for: str | None = None,
        deduplicate: Sequence[str] = (), deduplicate_within: str | None = None, connection: str | None = None,
        budget: str | None = None, incomplete: bool = False, backfill: bool | str = False,
        topic: str | None = None, dry_run: bool = False, late_by: str = "event", state_ttl: str | None = None,
        time_zone: str | None = None, table: str | None = None,
    ) -> Changed | Priced:  # fmt: skip
        """Add a query; returns when it is in the log. `dry_run`: only return the price."""
        fields = {
            "name": name, "text": text, "sink": sink, "serve": serve, "late": late, "emit": emit,
            "correct_for": correct_for, "deduplicate": tuple(deduplicate), "deduplicate_within": deduplicate_within,
            "connection": connection, "topic": topic, "table": table, "budget": budget, "incomplete": incomplete,
            "backfill": backfill, "late_by": late_by, "state_ttl": state_ttl, "time_zone": time_zone,
        }  # fmt: skip
        check_sink_names(sink, late, unknown=False)
        if emit not in get_args(Emit):
            raise not_allowed("emit", emit, get_args(Emit))
        if late_by not in get_args(LateBy):
            raise not_allowed("late_by", late_by, get_args(LateBy))
        try:
            query = msgspec.convert(fields, NewQuery)
        except msgspec.ValidationError as error:
            raise RequestError(f"The query cannot be added as it is described: {error}.", "See `Pond.add`.") from error
        return self._change("POST", "queries", dry_run, query, patient=bool(backfill))

    def alter(
        self, name: str, text: str, *, deduplicate: Sequence[str] = (), deduplicate_within: str | None = None,
        dry_run: bool = False,
    ) -> Changed | Priced:  # fmt: skip
        """Replace a query by a new version."""
        version = Version(text, tuple(deduplicate), deduplicate_within)
        return self._change("PUT", f"queries/{_segment(name)}", dry_run, version)

    def shadow(self, name: str, text: str, *, dry_run: bool = False) -> Changed | Priced:
        """Run a second version beside a query."""
        return self._change("PUT", f"queries/{_segment(name)}/shadow", dry_run, Version(text))

    def move(self, kind: str, name: str, *, dry_run: bool = False) -> Changed | Priced:
        """Make a change that needs no query text: drop, pause, resume, promote, rollback or discard; see `Pond`."""
        if kind not in STATE_CHANGES:
            raise RequestError(f"{kind!r} is no change of a query.", f"Use one of {', '.join(STATE_CHANGES)}.")
        path = f"queries/{_segment(name)}"
        if kind == "drop":
            return self._change("DELETE", path, dry_run)
        return self._change("POST", f"{path}/{kind}", dry_run)

    def drop(self, name: str) -> Changed | Priced:
        """Drop a query: its state is freed, and its name is free again."""
        return self.move("drop", name)

    def pause(self, name: str) -> Changed | Priced:
        """Pause a query until `resume`; rows that it would emit meanwhile are never emitted."""
        return self.move("pause", name)

    def resume(self, name: str) -> Changed | Priced:
        """Emit the rows of a paused query again."""
        return self.move("resume", name)

    def scale(
        self, instances: int | None = None, *, shards: int | Sequence[str] | None = None, dry_run: bool = False
    ) -> Changed | Priced:  # fmt: skip
        """Change the number of instances, from the next epoch on, or the shards of the store, in the background.

        `shards`: a number, or addresses `HOST:PORT`; an empty list ends a move of hash slots where it is.
        """
        wanted = shards if shards is None or isinstance(shards, int) else tuple(shards)
        return self._change("PUT", "instances", dry_run, Instances(instances, wanted))

    def relocate(self, what: str, to: str, *, dry_run: bool = False) -> Changed | Priced:
        """Move the served rows of some buckets to another store; returns when they have arrived, without a timeout."""
        return self._change("POST", "rows/move", dry_run, Relocation(what, to), patient=True)

    def param(
        self, name: str, value: bool | int | float | str | list[int | float | str], *, new: bool = False
    ) -> Changed:  # fmt: skip
        """Set a live parameter, in force from the next epoch on; `new`: make it, for queries that come later."""
        return self._call("PUT", f"params/{_segment(name)}", Changed, content=msgspec.json.encode(Value(value, new)))

    def unset(self, name: str) -> Changed:
        """Remove a live parameter that no query uses."""
        return self._call("DELETE", f"params/{_segment(name)}", Changed)

    def feed(self, name: str, query: str, column: str) -> Changed:
        """Let a live parameter take its values from the rows of a query's newest window."""
        content = msgspec.json.encode(Feeds(query, column))
        return self._call("PUT", f"params/{_segment(name)}/feed", Changed, content=content)

    def dead_letters(self, stream: str, *, pending: bool = False) -> Listed[LetterKind]:
        """The number of dead letters of a stream by topic, reason and the replays that have sent them.

        `pending`: only those that no replay has sent.
        """
        params: _Params = {"pending": "true"} if pending else {}
        return Listed(self._get(f"streams/{_segment(stream)}/dead-letters", list[LetterKind], params))

    def replay(
        self, stream: str, *, reason: str | None = None, timeless: bool = False, dry_run: bool = False
    ) -> Changed | Priced:
        """Send the dead letters of a stream to their topics again, each once; `reason`: only those that contain it.

        `timeless`: also events whose time does not compute. Queries that do not use this time emit their rows twice.
        """
        path = f"streams/{_segment(stream)}/dead-letters/replay"
        return self._change("POST", path, dry_run, Replay(reason, timeless), patient=True)

    def push(self, stream: str, events: Sequence[Mapping[str, Any]], *, key: str) -> PushDone:
        """Push events into a stream of JSON files; they are durable when this returns.

        `key`: a name of this request. If you do not know whether a request succeeded, repeat it with the same key and
        events: they are added once.
        """
        encode = msgspec.json.Encoder(decimal_format="number").encode
        raw = [{name: msgspec.Raw(encode(value)) for name, value in event.items()} for event in events]
        content = msgspec.json.encode(Push(key, raw))
        return self._call("POST", f"streams/{_segment(stream)}/events", PushDone, content=content)

    def rows(self, name: str, *, after: str | None = None, patience: float = 60.0) -> RowSubscription:
        """The rows of a query as they are committed: `for row in client.rows("alerts"): …`.

        `after`: a position of an earlier subscription (`RowSubscription.position`); None: from the next record on.
        `-1`: all rows that are still kept. A cut connection is opened again, also at another address of `url`;
        NotServingError: after `patience` seconds without an answer.
        """
        path = f"queries/{_segment(name)}/rows"

        @contextmanager
        def open_at(url: str, position: str) -> Iterator[Iterator[str]]:
            params = {"after": position}
            timeout = httpx.Timeout(_SILENT_S, connect=_HEALTH_S)
            try:
                with self._http.stream("GET", f"{url}/v1/{path}", params=params, timeout=timeout) as answer:
                    if not answer.is_success:
                        raise _refused(answer.read(), answer.status_code, url)
                    yield answer.iter_lines()
            except httpx.HTTPError as error:
                raise _unreached(error, url) from error

        start = str(self.status().record) if after is None else after
        urls = [self.url, *(url for url in self._urls if url != self.url)]
        return RowSubscription(open_at, urls, start, patience)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __repr__(self) -> str:
        return f"<Client of {self.url}>"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _change(
        self, method: str, path: str, dry_run: bool, body: msgspec.Struct | None = None, patient: bool = False
    ) -> Changed | Priced:
        content = None if body is None else msgspec.json.encode(body)
        params: _Params = {"dry_run": "true"} if dry_run else {}
        kind: type[Changed | Priced] = Changed | Priced  # type: ignore[assignment]
        return self._call(method, path, kind, params, content, patient)

    def _get(self, path: str, kind: type[T], params: _Params | None = None) -> T:
        return self._call("GET", path, kind, params)

    def _call(
        self, method: str, path: str, kind: type[T], params: _Params | None = None, content: bytes | None = None,
        patient: bool = False,
    ) -> T:  # fmt: skip
        if not self._found:
            self._find_leader()
        request = method, path, kind, params, content, patient
        try:
            return self._send(*request)
        except _NotMade as unmade:
            before = self.url
            self._find_leader()
            if self.url == before:
                raise unmade.error from unmade.__cause__
        try:
            return self._send(*request)
        except _NotMade as unmade:
            raise unmade.error from unmade.__cause__

    def _find_leader(self) -> None:
        """Use the service that leads; if none does, the one that was used before."""
        if len(self._urls) == 1:
            return
        for url in self._urls:
            with suppress(httpx.HTTPError, msgspec.MsgspecError):
                found = self._http.get(f"{url}/v1/health", timeout=_HEALTH_S)
                if msgspec.json.decode(found.content, type=Health).role == "leader":
                    self.url, self._found = url, True
                    return

    def _send(
        self, method: str, path: str, kind: type[T], params: _Params | None, content: bytes | None, patient: bool
    ) -> T:  # fmt: skip
        headers = {} if content is None else {"content-type": "application/json"}
        try:
            answer = self._http.request(
                method, f"{self.url}/v1/{path}", params=params, content=content, headers=headers,
                timeout=httpx.Timeout(None, connect=10) if patient else httpx.USE_CLIENT_DEFAULT,
            )  # fmt: skip
        except httpx.HTTPError as error:
            if isinstance(error, httpx.ReadTimeout):
                cure = "The change may still be made: look at `millpond history` before you try again."
                raise NotServingError(f"{self.url} has not answered in time.", cure) from error
            unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) or method == "GET"
            failed = _unreached(error, self.url)
            raise (_NotMade(failed) if unsent and isinstance(failed, NotServingError) else failed) from error
        if answer.is_success:
            if kind is bytes:
                return cast(T, answer.content)
            try:
                return msgspec.json.decode(answer.content, type=kind)
            except msgspec.MsgspecError as error:
                raise _unknown(answer.status_code, self.url) from error
        failure = _refused(answer.content, answer.status_code, self.url)
        raise _NotMade(failure) if isinstance(failure, NotServingError) else failure


class _NotMade(Exception):
    """A request was certainly not made, because of `error`, so it may be sent to another service."""

    def __init__(self, error: NotServingError) -> None:
        super().__init__(str(error))
        self.error = error


def _unreached(error: httpx.HTTPError, url: str) -> MillpondError:
    """Why no answer came from an address."""
    if (untrusted := certificate_error(error, url)) is not None:
        return untrusted
    why = "no pond is served there now" if _is_refused(error) else str(error) or type(error).__name__
    return NotServingError(f"Nobody answers at {url}: {why}.", "Start `millpond serve`, or wait.")


def _refused(content: bytes, status: int, url: str) -> MillpondError:
    """The error that a service has sent."""
    try:
        refused = msgspec.json.decode(content, type=Refusal)
    except msgspec.MsgspecError:
        return _unknown(status, url)
    return of_code(refused.code)(refused.what, refused.cure)


def _unknown(status: int, url: str) -> RequestError:
    what = f"{url} answers {status}, and nothing that is known here."
    return RequestError(what, "Ask a `millpond serve`.")


def _check_addresses(urls: Sequence[str]) -> None:
    for url in urls:
        cure = "Write http://HOST:PORT or https://NAME:PORT."
        try:
            scheme = httpx.URL(url).scheme
        except httpx.InvalidURL as error:
            raise SetupError(f"{url} is no address: {error}.", cure) from error
        if scheme not in ("http", "https"):
            raise SetupError(f"{url} does not begin with http:// or https://.", cure)


def _is_refused(error: BaseException | None) -> bool:
    """Whether the error says that no process listens at the address."""
    while error is not None and not isinstance(error, ConnectionRefusedError):
        error = error.__cause__ or error.__context__
    return error is not None


def _segment(name: str) -> str:
    """A name as a segment of a URL path; invalid names are refused here, since they could change the path."""
    if not (name.isidentifier() and name.isascii()):
        raise RequestError(f"{name!r} is no name.", "Use letters, digits and underscores.")
    return name
