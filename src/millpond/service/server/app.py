"""The HTTP API of a pond: paths, bodies, responses and errors, and their descriptions in the OpenAPI document."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from millpond.control.diagnose.letter_message import LetterKind
from millpond.control.diagnose.why_message import WIDEST, WhyShown
from millpond.errors import (
    AccessError,
    BusyError,
    ChangeRefused,
    FencedError,
    GoneError,
    InputError,
    MillpondError,
    NotServingError,
    QueryError,
    RequestError,
    SetupError,
    StoreError,
)
from millpond.runtime.inspect.timeline import KEPT, Trace
from millpond.service.api.messages import (
    STATE_CHANGES,
    Changed,
    Differs,
    Event,
    Feeds,
    Found,
    FunctionShown,
    Health,
    Instances,
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
    RowsSent,
    Status,
    StreamShown,
    Value,
    Version,
    check_sink_names,
)
from millpond.service.server.guard import HEADERS, refusal
from millpond.service.server.hosted_pond import HostedPond
from millpond.service.server.row_stream import RowStream
from millpond.version import VERSION

T = TypeVar("T")

_ARROW = "application/vnd.apache.arrow.stream"
_EVENTS = "text/event-stream"

STATUS: tuple[tuple[type[MillpondError], int], ...] = (
    (GoneError, 410),
    (ChangeRefused, 409),
    (QueryError, 422),
    (InputError, 422),
    (AccessError, 401),
    (BusyError, 429),
    (RequestError, 400),
    (NotServingError, 503),
    (FencedError, 503),
    (StoreError, 503),
    (SetupError, 503),
)
"""The HTTP status by error class: the first matching class counts; all other errors are 500."""

WHO = "millpond-who"
"""The header in which a client names the requester, for the history."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_REF = "#/components/schemas/{name}"
_log = logging.getLogger("millpond.service")


class Missing(RequestError):
    """There is nothing of that name."""


def status_of(error: MillpondError) -> int:
    """The HTTP status of the response to an error."""
    if isinstance(error, Missing):
        return 404
    return next((status for kind, status in STATUS if isinstance(error, kind)), 500)


def named(name: str) -> str:
    """The name, if it is safe as a part of a URL path and as the name of a folder.

    Raises:
        RequestError: the name is not a plain word.
    """
    if _NAME.fullmatch(name) is None:
        raise RequestError(f"{name[:80]!r} is no name.", "Use letters, digits and underscores, at most 128.")
    return name


def make_app(verbs: HostedPond, rows: RowStream, exposition: Callable[[str], tuple[bytes, str]]) -> FastAPI:
    """The HTTP application of a pond; run it behind a `Guard`. `exposition`: see `Metrics.exposition`."""
    app = FastAPI(title="Millpond", version=VERSION, docs_url=None, redoc_url=None, redirect_slashes=False)
    _show(app, verbs)
    _show_query(app, verbs)
    _change(app, verbs)
    _parameters(app, verbs)
    _exchange(app, verbs, rows)
    _expose(app, exposition)
    _explain(app)
    app.add_exception_handler(Exception, _failed)
    for kind in (MillpondError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _failed)
    return app


def _answered(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, HEADERS, "application/json")


async def _failed(request: Request, error: Exception) -> Response:
    """The response to an error, with the status of its class."""
    if isinstance(error, RequestValidationError):
        where = ", ".join(sorted({str(one["loc"][-1]) for one in error.errors()}))
        error = RequestError(f"{where} is missing, or not of its type.", "See /openapi.json.")
    elif isinstance(error, HTTPException):
        known = error.status_code in (404, 405)
        found = Missing if error.status_code == 404 else RequestError
        what = f"There is no {request.method} {request.url.path[:200]}." if known else str(error.detail)
        return Response(refusal(found(what, "See /openapi.json.")), error.status_code, HEADERS, "application/json")
    elif not isinstance(error, MillpondError):
        _log.error("a request failed", exc_info=error)
        error = MillpondError(f"The service failed: {type(error).__name__}.", "Its log says more; please report it.")
    return Response(refusal(error), status_of(error), HEADERS, "application/json")


async def _read(request: Request, kind: type[T]) -> T:
    """The decoded body of a request.

    Raises:
        RequestError: the body is not a value of the type.
    """
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RequestError(f"The body is not as it must be: {error}.", "See /openapi.json.") from error


def requester(request: Request) -> str:
    """The requester for the history: the name in the request, which is trusted with the token, and the address."""
    address = request.client.host if request.client is not None else "?"
    name = "".join(char for char in request.headers.get(WHO, "")[:64] if char.isprintable())
    return f"{name or 'token'}@{address}"


DryRun = Annotated[bool, Query(description="Return the price of the change without making it.")]
Who = Annotated[str, Depends(requester)]


def _doc(answers: Any, body: Any = None, media_type: str = "application/json") -> dict[str, Any]:
    """The types of a verb's body and responses for the OpenAPI document, in the form in which `_typed` finds them.

    `media_type`: of a response without an error.
    """
    types = [answers] if body is None else [answers, body]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    found = {"schemas": schemas, "components": components, "media_type": media_type}
    return {"openapi_extra": {"x-types": found}, "response_class": Response}


def _show(app: FastAPI, verbs: HostedPond) -> None:
    """Add the routes of the verbs that change nothing."""

    @app.get("/v1/health", **_doc(Health), summary="The role of this process; needs no token")
    async def health() -> Response:
        return _answered(verbs.health())

    @app.get("/v1/status", **_doc(Status), summary="The state of the pond")
    def status() -> Response:
        return _answered(verbs.status())

    @app.get("/v1/streams", **_doc(list[StreamShown]), summary="The streams in force")
    def streams() -> Response:
        return _answered(verbs.streams())

    @app.get(
        "/v1/streams/{name}/dead-letters",
        **_doc(list[LetterKind]),
        summary="The number of dead letters by topic, reason and the replays that have sent them",
    )
    def dead_letters(
        name: str, pending: Annotated[bool, Query(description="Leave out those that a replay has sent.")] = False
    ) -> Response:
        return _answered(verbs.letters(named(name), pending))

    @app.get("/v1/queries", **_doc(list[QueryShown]), summary="The queries in force")
    def queries() -> Response:
        return _answered(verbs.queries())

    @app.get(
        "/v1/functions",
        **_doc(list[FunctionShown]),
        summary="The operator's user functions, and the queries that call them",
    )
    def functions(who: Who) -> Response:
        return _answered(verbs.functions(False, who))

    @app.get("/v1/params", **_doc(list[Parameter]), summary="The live parameters in force")
    def parameters() -> Response:
        return _answered(verbs.parameters())

    @app.get("/v1/history", **_doc(list[Event]), summary="The newest changes, the newest first")
    def history(limit: Annotated[int, Query(ge=1, le=10_000)] = 100) -> Response:
        return _answered(verbs.history(limit))

    @app.get("/v1/trace", **_doc(Trace), summary="Where the time of the newest epochs went, for Perfetto or Chrome")
    def trace(epochs: Annotated[int, Query(ge=1, le=KEPT)] = KEPT) -> Response:
        return _answered(verbs.trace(epochs))

    @app.get("/v1/lookup/{name}", **_doc(Found), summary="The latest row of a key of a served query")
    def lookup(
        name: str, key: Annotated[list[str], Query(description="The values of the key columns, as text, in order.")]
    ) -> Response:
        return _answered(verbs.lookup(named(name), key))

    @app.get("/v1/placement", **_doc(Placed), summary="Where the buckets of served rows are")
    def placement() -> Response:
        return _answered(verbs.placement())


def _show_query(app: FastAPI, verbs: HostedPond) -> None:
    """Add the routes that describe one query."""

    @app.get("/v1/queries/{name}", **_doc(QueryShown), summary="A query")
    def query(name: str) -> Response:
        found = next((one for one in verbs.queries() if one.name == name), None)
        if found is None:
            raise Missing(f"There is no query {name[:80]!r}.", "`millpond list` lists them, and GET /v1/queries.")
        return _answered(found)

    @app.get("/v1/queries/{name}/diff", **_doc(Differs), summary="How the rows of a query and its shadow differ")
    def diff(name: str) -> Response:
        return _answered(verbs.diff(named(name)))

    @app.get("/v1/queries/{name}/why", **_doc(WhyShown), summary="Why a query emits no rows")
    def why(
        name: str,
        width: Annotated[int, Query(description="The most columns of the text, 60 to 100.")] = WIDEST,
    ) -> Response:
        return _answered(verbs.why(named(name), width))


def _change(app: FastAPI, verbs: HostedPond) -> None:
    """Add the routes of the verbs that change the pond; a call returns when the change is in the log."""
    change: Any = Changed | Priced

    @app.post("/v1/queries", **_doc(change, NewQuery), summary="Add a query", status_code=201)
    async def add(request: Request, who: Who, dry_run: DryRun = False) -> Response:
        query = await _read(request, NewQuery)
        named(query.name)
        check_sink_names(query.sink, query.late, unknown=True)
        return _answered(await run_in_threadpool(verbs.add, query, who, dry_run), 200 if dry_run else 201)

    @app.put("/v1/queries/{name}", **_doc(change, Version), summary="Replace a query with a new version")
    async def alter(request: Request, name: str, who: Who, dry_run: DryRun = False) -> Response:
        version = await _read(request, Version)
        return _answered(await run_in_threadpool(verbs.version, "alter", named(name), version, who, dry_run))

    @app.put("/v1/queries/{name}/shadow", **_doc(change, Version), summary="Run a new version of a query as its shadow")
    async def shadow(request: Request, name: str, who: Who, dry_run: DryRun = False) -> Response:
        version = await _read(request, Version)
        return _answered(await run_in_threadpool(verbs.version, "shadow", named(name), version, who, dry_run))

    @app.delete("/v1/queries/{name}", **_doc(change), summary="Drop a query")
    def drop(name: str, who: Who, dry_run: DryRun = False) -> Response:
        return _answered(verbs.change_state("drop", named(name), who, dry_run))

    @app.post("/v1/queries/{name}/{move}", **_doc(change), summary=f"One of {', '.join(STATE_CHANGES[1:])}")
    def move(name: str, move: str, who: Who, dry_run: DryRun = False) -> Response:
        if move not in STATE_CHANGES[1:]:
            raise Missing(f"{move[:80]!r} is no change of a query.", f"Use one of {', '.join(STATE_CHANGES[1:])}.")
        return _answered(verbs.change_state(move, named(name), who, dry_run))

    @app.post("/v1/functions/reload", **_doc(list[FunctionShown]), summary="Load new versions of user functions")
    def reload(who: Who) -> Response:
        return _answered(verbs.functions(True, who))

    @app.put("/v1/instances", **_doc(change, Instances), summary="Change the number of instances, or the shards")
    async def scale(request: Request, who: Who, dry_run: DryRun = False) -> Response:
        instances = await _read(request, Instances)
        return _answered(await run_in_threadpool(verbs.scale, instances, who, dry_run))

    @app.post(
        "/v1/rows/move", **_doc(change, Relocation), summary="Move the served rows of some buckets to another store"
    )
    async def relocate(request: Request, who: Who, dry_run: DryRun = False) -> Response:
        relocation = await _read(request, Relocation)
        return _answered(await run_in_threadpool(verbs.move_rows, relocation, who, dry_run))

    @app.post(
        "/v1/streams/{name}/dead-letters/replay", **_doc(change, Replay),
        summary="Send the dead letters of a stream to their topics again",
    )  # fmt: skip
    async def replay(request: Request, name: str, who: Who, dry_run: DryRun = False) -> Response:
        wanted = await _read(request, Replay)
        return _answered(await run_in_threadpool(verbs.replay, named(name), wanted, who, dry_run))


def _parameters(app: FastAPI, verbs: HostedPond) -> None:
    """Add the routes that change live parameters."""

    @app.put("/v1/params/{name}", **_doc(Changed, Value), summary="Set a live parameter")
    async def parameter(request: Request, name: str, who: Who) -> Response:
        value = await _read(request, Value)
        return _answered(await run_in_threadpool(verbs.set, named(name), value, who))

    @app.delete("/v1/params/{name}", **_doc(Changed), summary="Remove a live parameter that no query uses")
    def unset(name: str, who: Who) -> Response:
        return _answered(verbs.unset(named(name), who))

    @app.put("/v1/params/{name}/feed", **_doc(Changed, Feeds), summary="Feed a live parameter from rows of a query")
    async def feed(request: Request, name: str, who: Who) -> Response:
        feeds = await _read(request, Feeds)
        return _answered(await run_in_threadpool(verbs.feed, named(name), feeds, who))


def _exchange(app: FastAPI, verbs: HostedPond, rows: RowStream) -> None:
    """Add the routes that take events and send rows."""

    @app.post("/v1/streams/{name}/events", **_doc(PushDone, Push), summary="Push events into a stream of JSON files")
    async def push(request: Request, name: str) -> Response:
        body = await _read(request, Push)
        return _answered(await run_in_threadpool(verbs.push, named(name), body))

    @app.get(
        "/v1/queries/{name}/table", **_doc(Any, media_type=_ARROW),
        summary="The latest rows of all keys of a served query, as a stream of Arrow",
    )  # fmt: skip
    def table(name: str) -> Response:
        return StreamingResponse(verbs.table(named(name)), 200, HEADERS, _ARROW)

    @app.get(
        "/v1/queries/{name}/rows", **_doc(RowsSent, media_type=_EVENTS),
        summary="The rows of a query as they are committed, as server-sent events",
    )  # fmt: skip
    async def subscribe(
        request: Request, name: str,
        after: Annotated[str | None, Query(description="The id of the last event that was processed.")] = None,
    ) -> Response:  # fmt: skip
        last = request.headers.get("last-event-id", after)
        first = await run_in_threadpool(rows.begin, named(name), last)
        headers = HEADERS | {"x-accel-buffering": "no"}  # a proxy would hold events back
        return StreamingResponse(rows.events(name, first), 200, headers, _EVENTS)


def _expose(app: FastAPI, exposition: Callable[[str], tuple[bytes, str]]) -> None:
    """Add the route of the metrics, whose path is the one that Prometheus requests by default."""

    @app.get("/metrics", include_in_schema=False)
    def metrics(request: Request) -> Response:
        text, content_type = exposition(request.headers.get("accept", ""))
        return Response(text, 200, HEADERS | {"content-type": content_type})


def _explain(app: FastAPI) -> None:
    """Add the types of bodies and responses (`messages`), which FastAPI does not know, to the OpenAPI document."""
    made = FastAPI.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _typed(made(app))
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _typed(document: dict[str, Any]) -> dict[str, Any]:
    (refused,), components = msgspec.json.schema_components([Refusal], ref_template=_REF)
    for verb in (verb for path in document["paths"].values() for verb in path.values()):
        types = verb.pop("x-types")
        answer, *body = types["schemas"]
        components |= types["components"]
        (number,) = (number for number in verb["responses"] if number.startswith("2"))
        verb["responses"] = {
            number: {"description": "Done", "content": {types["media_type"]: {"schema": answer}}},
            "default": {
                "description": "An error, with one of the project's codes: docs/errors.md",
                "content": {"application/json": {"schema": refused}},
            },
        }
        if body:
            verb["requestBody"] = {"required": True, "content": {"application/json": {"schema": body[0]}}}
    for schema in components.values():  # newer versions of msgspec do so
        schema["description"] = inspect.cleandoc(schema["description"])
    document["components"] = {
        "schemas": dict(sorted(components.items())),
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    }
    document["security"] = [{"token": []}]
    document["paths"]["/v1/health"]["get"]["security"] = []
    return document
