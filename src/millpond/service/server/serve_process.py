"""The process of `millpond serve`: the main thread runs the pond, another thread answers requests."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeAlias, cast

import uvicorn
from starlette.middleware.cors import CORSMiddleware

from millpond.connections import is_loopback, unencrypted
from millpond.control.checks.brokers import unreachable_brokers
from millpond.control.checks.same_queries import unused_texts
from millpond.control.checks.sink_folders import check_sink_folders
from millpond.control.commands.autoscale import Autoscaler
from millpond.control.commands.command_log import LogLine, is_json, log_epoch
from millpond.control.commands.interrupts import interrupts
from millpond.control.commands.run import given_parameters, parameter_notes, start_spark
from millpond.control.commands.watchdog import Watchdog, end_process
from millpond.control.pond.pond import Pond
from millpond.control.stall_limits import TAKE_OVER_SECONDS
from millpond.control.wiring.output_folders import default_output
from millpond.control.wiring.stores_and_followers import address_at, checked_store
from millpond.control.wiring.truth import holds_something, open_truth
from millpond.errors import SetupError, SparkError
from millpond.gc_freeze import freeze_loaded_objects
from millpond.log.locations.address import address_of
from millpond.placement.bucket_stores import check_place
from millpond.reconfigure.lifecycle import current
from millpond.service.api.certificates import is_valid_for
from millpond.service.api.serve_options import Options
from millpond.service.api.service_files import FOLDER as SERVICE
from millpond.service.api.service_files import Leader, Places, places_of
from millpond.service.api.sessions import Sessions
from millpond.service.server.app import WHO, make_app
from millpond.service.server.browser.sign_in import Entrance
from millpond.service.server.connection_limits import (
    ACCEPTED_AT_ONCE,
    CountingSocket,
    IdleTimeout,
    UnauthenticatedConnections,
    bound_socket,
)
from millpond.service.server.epoch_lines import EpochLines
from millpond.service.server.gauges import Gauges
from millpond.service.server.guard import HEAD_BYTES, Application, Guard, Limits
from millpond.service.server.hosted_pond import HostedPond
from millpond.service.server.leadership import LeadershipHints
from millpond.service.server.log_reader import LogReader
from millpond.service.server.metrics.otel_setup import exporting
from millpond.service.server.metrics.prometheus import Metrics
from millpond.service.server.restart import VARIABLE as RESTARTED
from millpond.service.server.restart import RestartNeeded, Restarts, restart
from millpond.service.server.row_stream import RowStream
from millpond.service.server.supervisor import Runs, Supervisor
from millpond.service.server.warm_copies import WarmCopies
from millpond.service.server.warm_up import WarmUp
from millpond.spark.driver.epochs import Epoch
from millpond.spark.session.session import end_java, explaining, joined_java, jvm_failure
from millpond.state.ports.files import IDENTITY
from millpond.tokens import writer_token

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_ANY = ("0.0.0.0", "::")
_CONNECTIONS = 512

ExtraServer: TypeAlias = Callable[[str], AbstractContextManager[None]]
"""Makes, from the token, a context in which another server answers too, such as that of PostgreSQL clients."""

OpenConsole: TypeAlias = Callable[[HostedPond, RowStream, LogReader], Awaitable[Application]]
"""Loads the web console of a pond; called in the loop that answers requests, when the console is first visited."""


class Web(NamedTuple):
    """The address at which the service listens, and the clients that it accepts. Port 0: any free port."""

    host: str = "127.0.0.1"
    port: int = 0
    certificate: Path | None = None
    key: Path | None = None
    names: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    limits: Limits = Limits()


def check_web(web: Web) -> None:
    """Refuse an address that other hosts could reach without TLS.

    Raises:
        SetupError: the certificate or the key is missing.
    """
    if (web.certificate is None) != (web.key is None):
        raise SetupError("TLS needs a certificate and its key.", "Give both --tls-cert and --tls-key.")
    for file in (web.certificate, web.key):
        if file is not None and not os.access(file, os.R_OK):
            raise SetupError(f"{file} cannot be read.", "Name a file of PEM that you may read.")
    if not is_loopback(web.host) and web.certificate is None:
        raise SetupError(
            f"Others can reach {web.host}, so requests there must be encrypted.",
            "Give --tls-cert and --tls-key, or serve on 127.0.0.1.",
        )


def check_stores(options: Options) -> None:
    """Refuse unknown kinds of stores, and addresses that must not be stored, before this process leads or stands by.

    Raises:
        StoreError: the kind of store is unknown, or the variable that names the store is not set.
        ChangeRefused: the address of a shard contains a password.
    """
    checked_store(options.store)
    for shard in options.shards:
        check_place(shard)
        checked_store(address_at(shard, options.store))


def serve(
    options: Options, web: Web, say: LogLine, extra_server: ExtraServer = lambda _: nullcontext(),
    open_console: OpenConsole | None = None, pg: str | None = None,
) -> None:  # fmt: skip
    """Serve a pond until SIGINT or SIGTERM.

    `extra_server`: answers PostgreSQL clients at `pg` meanwhile. `open_console` None: there is no web console.

    Raises:
        MillpondError: the pond cannot be served, or not any longer.
    """
    restarts = Restarts.from_environment()
    os.environ.pop(RESTARTED, None)
    check_web(web)
    check_stores(options)
    address = address_of(options.folder)
    unused, places = not holds_something(address), places_of(address, options.patience)
    if unused:
        check_sink_folders(options.text, options.out or default_output(address))
    there = address.path is not None and address.path.exists()
    open_truth(address)  # raises if the folder holds something else, which then stays untouched
    places.make()
    try:
        again = _serve(options, web, places, restarts, say, extra_server, open_console, pg)
    except BaseException:
        if unused and address.path is not None:
            _unmake(address.path, there)
        raise
    if again is not None:
        _replace(again)


def _replace(restarts: Restarts) -> NoReturn:
    """Replace this process by a new one, after its JVM has ended.

    A process whose JVM belongs to spark-submit ends instead: the JVM continues, and a new process could not start Spark
    in it a second time.
    """
    if joined_java():
        end_process(
            SparkError(
                "This service cannot restart itself, because spark-submit has started its JVM.",
                "In YARN's cluster mode, YARN starts both again. Elsewhere, submit it again.",
            )
        )
    end_java()
    restart(restarts)


def _end_or_replace(supervisor: Supervisor, port: int) -> NoReturn:
    """End this process, whose main thread hangs, if a stop was requested; otherwise replace it."""
    if (error := supervisor.restart_or_error()) is not None:
        end_process(error)
    _replace(Restarts(supervisor.restarts, port))


def _serve(
    options: Options, web: Web, places: Places, restarts: Restarts, say: LogLine,
    extra_server: ExtraServer, open_console: OpenConsole | None, pg: str | None,
) -> Restarts | None:  # fmt: skip
    """Serve until a stop is requested (returns None), or until the process should be restarted."""
    secret, reader, address = places.secret(), LogReader(options.folder), address_of(options.folder)
    with _bound(web, restarts.port) as listener:
        port = listener.getsockname()[1]
        name, sound = local_name(web)
        me = Leader(_url(web, name, port), os.getpid(), writer_token(), certificate=_certificate(web), pg=pg)

        def ready() -> None:
            places.remove_starting(me)
            say(f"The pond is in {address}; its token in {places.where}; it is served at {me.url}")
            if pg is not None:
                say(f"PostgreSQL clients are answered at {pg}.")
            if not sound:
                say(f"The certificate is not for {name}: name one that is in it with --allow-host.")
            known = {one.name: one.value for one in reader.parameters(with_records=False)}
            for note in parameter_notes(known, options.parameters):
                say(note)
            for warning in unencrypted():
                say(warning, logging.WARNING)

        hint = LeadershipHints(places, me, options.patience)
        process = _Process(options, reader, hint, say, ready, restarts.times)
        verbs = HostedPond(process.supervisor, reader, lambda: process.gauges, places, options.shards, options.pushed)
        rows = RowStream(reader)
        metrics = Metrics(verbs, reader, lambda: process.gauges)
        sessions, api = Sessions(secret), make_app(verbs, rows, metrics.exposition)
        loaded = None if open_console is None else partial(open_console, verbs, rows, reader)
        Entrance(secret, sessions, web.certificate is not None, loaded).add_to(api)
        app = _guarded(api, secret, web, listener.unauthenticated, sessions)
        supervisor = process.supervisor
        watched = Watchdog(supervisor.count_stalled_check, lambda: _end_or_replace(supervisor, port)).running()
        warm = WarmCopies(lambda: None if (found := reader.now()) is None else found[0])
        copying = nullcontext() if address.path else warm.running(lambda: supervisor.role == "standby")
        with (
            _answering(app, web, listener, rows.end), interrupts(say) as signals, signals.stopping(supervisor.stop),
            watched, copying, exporting(metrics.families, me.url, say), extra_server(secret),
        ):  # fmt: skip
            say(f"Spark starts for the pond in {address}.")
            places.write_starting(me)
            try:
                supervisor.run()
            except RestartNeeded:
                return Restarts(supervisor.restarts, port)
            finally:
                places.remove_starting(me)
                process.lines.log_remaining()
                process.warm_up.wait()
    say("Stopped.")
    return None


def _unmake(folder: Path, existed: bool) -> None:
    """Delete the created folder of a new pond, if nothing was recorded in it and no other process serves it."""
    names = (IDENTITY, "log", "manifest", SERVICE)
    with suppress(OSError):
        if any((folder / "log").iterdir()) or any(entry.name not in names for entry in folder.iterdir()):
            return
        if LeadershipHints(Places(folder), Leader("", 0, "")).try_take_over():
            for name in names[1:]:
                shutil.rmtree(folder / name)
            (folder / IDENTITY).unlink()
            if not existed:
                folder.rmdir()


class _Process:
    """The ponds that this process creates, one after the other, and their metrics."""

    def __init__(
        self, options: Options, reader: LogReader, hint: LeadershipHints, say: LogLine,
        ready: Callable[[], None], restarts: int,
    ) -> None:  # fmt: skip
        self._options, self._reader, self._say = options, reader, say
        self.gauges, self.lines = Gauges(), EpochLines()
        self._pond: Pond | None = None
        self._autoscaler: Autoscaler | None = None
        self.warm_up = WarmUp()
        self.supervisor = Supervisor(
            self._make, self._begins, hint, say, ready, partial(jvm_failure, 0.2), restarts=restarts,
            epoch_seconds=options.stalled_after + TAKE_OVER_SECONDS,
            warm_up=lambda: self.warm_up.begin(cast(Pond, self._pond).spark),
        )  # fmt: skip

    @explaining()
    def _make(self) -> Runs:
        settings, self.gauges = self._options, Gauges()
        spark = start_spark(settings.master, settings.memory, settings.spark)
        pond = Pond(
            spark, settings.folder, instances=settings.instances, store=settings.store, on_epoch=self._committed,
            on_alive=self._alive, stalled_after=settings.stalled_after,
            out=settings.out,
        )  # fmt: skip
        given_parameters(pond, settings.folder, settings.parameters)
        pond.load(settings.text, queries=False)
        for note in unreachable_brokers(pond.streams):
            self._say(str(note))
        self._pond, self._autoscaler = pond, None if settings.autoscale is None else Autoscaler(settings.autoscale)
        freeze_loaded_objects()  # now, rather than while a standby takes over
        return pond

    @explaining()
    def _begins(self, made: Runs) -> bool:
        """Continue a pond that has begun with the queries in force, or begin a new one with the queries of the file."""
        pond = cast(Pond, made)
        if (found := self._reader.now()) is not None:
            if note := unused_texts(pond.texts_in_file, current(found[1])):
                self._say(note)
            return True
        pond.load(self._options.text)
        return bool(pond.queries)

    def _committed(self, epoch: Epoch) -> None:
        self.gauges.epoch(epoch)
        if is_json():
            log_epoch(epoch)
        else:
            self.lines.add(epoch)
        self.supervisor.committed()
        if self._autoscaler is not None and self._pond is not None:
            self._autoscaler.epoch(self._pond, epoch.record)

    def _alive(self, work: tuple[int, ...] | None) -> None:
        self.supervisor.alive(work)
        self.lines.log_due()


def local_name(web: Web) -> tuple[str, bool]:
    """The name by which commands on this machine should reach the service, and whether its certificate covers it."""
    own: tuple[str, ...] = (web.host,)
    if web.host in _ANY:
        own = (*web.names, "localhost", "127.0.0.1", socket.gethostname())
    elif web.certificate is not None:
        own = (web.host, *web.names, *(("localhost",) if is_loopback(web.host) else ()))
    if web.certificate is None or web.key is None:
        return own[0], True
    found = next((name for name in own if is_valid_for(web.certificate, web.key, name)), None)
    return (own[0], False) if found is None else (found, True)


def _guarded(
    app: Application, secret: str, web: Web, unauthenticated: UnauthenticatedConnections,
    sessions: Sessions | None = None,
) -> Application:  # fmt: skip
    """The service behind its guard; CORS comes first, because a browser's preflight request has no token."""
    guard = Guard(
        app, secret, known_names(web), origins=frozenset(web.origins), limits=web.limits, trust=unauthenticated.trust,
        sessions=sessions,
    )  # fmt: skip
    if not web.origins:
        return guard
    headers = ("authorization", "content-type", WHO)
    return CORSMiddleware(guard, web.origins, ("GET", "POST", "PUT", "DELETE"), headers)


def _url(web: Web, host: str, port: int) -> str:
    return f"{'http' if web.certificate is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"


def _certificate(web: Web) -> str | None:
    return None if web.certificate is None else os.path.abspath(web.certificate)


def known_names(web: Web) -> frozenset[str]:
    """The host names that requests may use; always those of loopback, as they cannot be those of a foreign page."""
    own = (web.host,) if is_loopback(web.host) else (web.host, socket.gethostname())
    return frozenset(name.lower() for name in {*_LOOPBACK_NAMES, *own, *web.names})


@contextmanager
def _bound(web: Web, wanted: int = 0) -> Iterator[CountingSocket]:
    """A listening socket; opened before anything slow, so that a port in use is reported at once.

    If any port is allowed, it is `wanted` if that one is free.
    """
    try:
        try:
            listener = bound_socket(web.host, web.port or wanted)
        except OSError:
            if web.port:
                raise
            listener = bound_socket(web.host, 0)
    except OSError as error:
        cure = "Choose another port with --listen."
        raise SetupError(f"{web.host}:{web.port} cannot be served at: {error}.", cure) from error
    with CountingSocket.of(listener) as counting:
        yield counting


@contextmanager
def _answering(
    app: Application, web: Web, listener: CountingSocket, end: Callable[[], None] = lambda: None
) -> Iterator[None]:  # fmt: skip
    """Answer requests in a separate thread; on exit, running requests are completed first.

    `end`: ends the requests that would never end.
    """
    config = uvicorn.Config(
        app, lifespan="off", ws="none", http=IdleTimeout, log_config=None, access_log=False, proxy_headers=False,
        server_header=False, limit_concurrency=_CONNECTIONS, timeout_keep_alive=5, timeout_graceful_shutdown=10,
        h11_max_incomplete_event_size=HEAD_BYTES, loop="asyncio", backlog=ACCEPTED_AT_ONCE,
        ssl_certfile=None if web.certificate is None else str(web.certificate),
        ssl_keyfile=None if web.key is None else str(web.key),
    )  # fmt: skip
    try:
        config.load()
    except (OSError, ValueError) as error:  # TLS errors are subclasses of these
        raise SetupError(f"TLS cannot be had: {error}.", "Give a certificate and its own key, as PEM.") from error
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="millpond-service", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end()
        server.should_exit = True
        thread.join(15)
