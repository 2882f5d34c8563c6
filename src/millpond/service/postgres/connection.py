"""One connection of a PostgreSQL client: TLS, the token as password, and the simple and the extended query protocol.

Source: https://www.postgresql.org/docs/current/protocol-flow.html
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import socket
import ssl
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import NamedTuple, TypeVar

from millpond.errors import (
    AccessError,
    BusyError,
    MillpondError,
    NotServingError,
    QueryRefused,
    QuerySyntaxError,
    QueryTypeError,
    RequestError,
    UnsupportedQuery,
)
from millpond.service.postgres import messages
from millpond.service.postgres.client_sql import Statement, statements_of
from millpond.service.postgres.messages import Fields, ProtocolError, message
from millpond.service.postgres.portals import Close, Declare, Fetch, Portal, cursor_request
from millpond.service.postgres.result_format import BINARY, TEXT, data_rows, formats_of, parameter
from millpond.service.postgres.sandbox import StatementError
from millpond.service.postgres.session import REPORTED, Answer, Session

T = TypeVar("T")

LOGIN_SECONDS = 10.0
"""The time in which a client must have sent the token, from when it connected."""

_STATES: tuple[tuple[type[MillpondError], str], ...] = (
    (AccessError, "28P01"),
    (NotServingError, "57P03"),
    (BusyError, "53300"),
    (QuerySyntaxError, "42601"),
    (QueryRefused, "42501"),
    (QueryTypeError, "42804"),
    (UnsupportedQuery, "0A000"),
    (RequestError, "0A000"),
)
"""The SQLSTATE of our errors; the first matching class counts."""

SETTLED_BYTES = 64 << 20
"""The most bytes that the rows of a connection's unfinished portals may take while another statement runs."""

_NEGOTIATIONS = 2
"""The most requests before the start-up message: a client requests TLS and GSS encryption once each."""

_DEALLOCATE = re.compile(r"DEALLOCATE\s+(?:PREPARE\s+)?(\"?)(.*)\1", re.IGNORECASE | re.DOTALL)

_NOTHING = Statement("", "")
_log = logging.getLogger("millpond.service")


class Entrance(NamedTuple):
    """What clients need to get in: the token, and TLS if there is a certificate.

    `admit`: whether an address may try a token now. `fine`: called with the address of who had a wrong one. `trust`:
    called with the address and port of who had the token.
    """

    token: str
    tls: ssl.SSLContext | None
    loopback: bool
    admit: Callable[[str], bool]
    fine: Callable[[str], None]
    trust: Callable[[tuple[str, int]], None]


class _Prepared(NamedTuple):
    statement: Statement
    oids: Sequence[int]


class Connection:
    """Serves a client in this thread. `made`: makes the session; `cancel`: cancels the statement of another connection
    by its key.
    """

    def __init__(
        self, client: socket.socket, peer: tuple[str, int], entrance: Entrance, made: Callable[[], Session],
        cancel: Callable[[bytes], None],
    ) -> None:  # fmt: skip
        self._client, self._peer, self._entrance = client, peer, entrance
        self._made, self._cancel = made, cancel
        self._login_ends = monotonic() + LOGIN_SECONDS
        self.key = secrets.token_bytes(8)
        """What a client needs to cancel a statement: four bytes for a process, four of a secret."""
        self.session: Session | None = None
        self._prepared: dict[str, _Prepared] = {}
        self._portals: dict[str, Portal] = {}

    def interrupt(self) -> None:
        """End the running statement; for any thread."""
        if self.session is not None:
            self.session.interrupt()

    def serve(self) -> None:
        """Serve until the client leaves."""
        try:
            parameters = self._begin()
            if parameters is None:
                return
            self._authenticate()
            self._entrance.trust(self._peer)
            self._client.settimeout(None)
            self.session = self._made()
            self._welcome(parameters)
            with self._client.makefile("rb") as source:
                self._answer_all(source.read)
        except (MillpondError, ProtocolError) as error:
            self._refuse(error)
        except OSError:
            pass  # the client has gone, was too slow, or does not speak TLS
        finally:
            if self.session is not None:
                self.session.close()
            self._client.close()

    def _begin(self) -> Mapping[str, str] | None:
        """Begin TLS if the client wants it, and read its start-up message; None: it only cancels a statement."""
        for _ in range(_NEGOTIATIONS + 1):
            size = int.from_bytes(self._exactly(4), "big") - 4
            if not 4 <= size <= messages.STARTUP_BYTES:
                raise ProtocolError("this is no start-up message of PostgreSQL")
            body = self._exactly(size)
            code = int.from_bytes(body[:4], "big")
            if code == messages.TLS and self._entrance.tls is not None and not self._encrypted:
                self._client.sendall(b"S")
                self._client = self._entrance.tls.wrap_socket(self._client, server_side=True)
            elif code in (messages.TLS, messages.GSS):
                self._client.sendall(b"N")
            elif code == messages.CANCEL:
                self._cancel(body[4:12])
                return None
            elif code >> 16 == messages.PROTOCOL >> 16:
                return self._started(code, messages.read_startup(body[4:]))
            else:
                raise ProtocolError(f"the version {code >> 16}.{code & 0xFFFF} of the protocol is not known here")
        raise ProtocolError("the client sends no start-up message")

    @property
    def _encrypted(self) -> bool:
        return isinstance(self._client, ssl.SSLSocket)

    def _started(self, version: int, parameters: Mapping[str, str]) -> Mapping[str, str]:
        if not self._encrypted and not self._entrance.loopback:
            raise AccessError("Connections from other hosts must be encrypted.", "Connect with sslmode=require.")
        unknown = [name for name in parameters if name.startswith("_pq_.")]
        if version & 0xFFFF or unknown:
            names = b"".join(map(messages.text, unknown))
            self._client.sendall(message(b"v", struct.pack(">ii", messages.PROTOCOL, len(unknown)), names))
        return parameters

    def _authenticate(self) -> None:
        """Ask for the password, which is the token.

        Raises:
            AccessError: it is not the token. BusyError: it is not, and this address has tried too many.
        """
        self._client.sendall(message(b"R", (3).to_bytes(4, "big")))
        found = messages.read_message(self._exactly)
        if found is None or found[0] != b"p":
            raise ProtocolError("the client sends no password")
        given, token = found[1].text().encode(), self._entrance.token.encode()
        # All programs of a host share its address: wrong passwords must not lock out a client with the right one.
        if not hmac.compare_digest(hashlib.sha256(given).digest(), hashlib.sha256(token).digest()):
            if not self._entrance.admit(self._peer[0]):
                raise BusyError("Too many connections were tried from this address.", "Wait a second.")
            self._entrance.fine(self._peer[0])
            raise AccessError("The password is not the pond's token.", "Send the token in service/token as password.")

    def _welcome(self, parameters: Mapping[str, str]) -> None:
        settings = {
            **REPORTED, "session_authorization": parameters.get("user", ""),
            "application_name": parameters.get("application_name", ""),
        }  # fmt: skip
        ok = message(b"R", bytes(4))
        self._client.sendall(ok + messages.parameter_status(settings) + message(b"K", self.key) + self._ready())

    def _ready(self) -> bytes:
        assert self.session is not None
        return message(b"Z", self.session.transaction.encode())

    def _answer_all(self, read: Callable[[int], bytes]) -> None:
        skipping = False
        while (found := messages.read_message(read)) is not None:
            kind, fields = found
            if kind == b"X":
                return
            if kind == b"S":
                skipping = False
                self._client.sendall(self._ready())
            elif kind == b"Q":
                self._simple(fields.text())
                self._client.sendall(self._ready())
            elif not skipping:
                handler = self._HANDLERS.get(kind)
                if handler is None:
                    raise ProtocolError(f"messages of the type {kind!r} are not known here")
                skipping = not self._tried(partial(handler, self, fields))

    def _tried(self, work: Callable[[], object]) -> bool:
        """Do a part of a request; returns whether it succeeded, otherwise the client has been sent the error."""
        assert self.session is not None
        try:
            work()
        except (ProtocolError, OSError):
            raise
        except Exception as error:
            self.session.failed()
            self._client.sendall(_error("ERROR", _of_ours(error)))
            return False
        return True

    def _simple(self, sql: str) -> None:
        """A request of the simple protocol: statements, each with all its rows."""
        statements = statements_of(sql)
        if not statements:
            self._client.sendall(message(b"I"))
        for statement in statements:
            if not self._tried(partial(self._all_rows, statement)):
                return

    def _all_rows(self, statement: Statement) -> None:
        portal = Portal(statement, (), ())
        portal.answer = answer = self._run(portal)
        if answer.columns:
            self._client.sendall(messages.row_description(answer.columns, answer.formats))
        self._send_rows(portal, answer, 0)

    def _parse(self, fields: Fields) -> None:
        name, sql, oids = fields.text(), fields.text(), [fields.int32() for _ in range(fields.int16())]
        statements = statements_of(sql)
        if len(statements) > 1:
            raise QuerySyntaxError("A prepared statement is one statement.", "Send them one after the other.")
        self._prepared[name] = _Prepared(statements[0] if statements else _NOTHING, oids)
        self._client.sendall(message(b"1"))

    def _bind(self, fields: Fields) -> None:
        name, prepared = fields.text(), self._known(self._prepared, fields.text())
        forms = fields.many16()
        count = fields.int16()
        values = []
        for place in range(count):
            form = forms[place] if len(forms) > 1 and place < len(forms) else forms[0] if len(forms) == 1 else TEXT
            oid = prepared.oids[place] if place < len(prepared.oids) else 0
            values.append(parameter(fields.value(), oid, form))
        self._portals[name] = Portal(prepared.statement, values, fields.many16())
        self._client.sendall(message(b"2"))

    def _describe(self, fields: Fields) -> None:
        assert self.session is not None
        kind, name = fields.take(1), fields.text()
        if kind == b"S":
            prepared = self._known(self._prepared, name)
            columns, number = self._columns(prepared.statement, prepared.oids)
            oids = [*prepared.oids, *[0] * number][: max(number, len(prepared.oids))]
            self._client.sendall(messages.parameter_description(oids))
            shown = messages.row_description(columns, [TEXT] * len(columns))
            self._client.sendall(shown if columns else message(b"n"))
            return
        portal = self._known(self._portals, name)
        if portal.cursor and portal.answer is None:  # its first FETCH requests the formats
            columns, _ = self._columns(portal.statement, (), portal.values)
            self._client.sendall(messages.row_description(columns, [TEXT] * len(columns)))
            return
        answer = self._opened(portal)
        shown = messages.row_description(answer.columns, answer.formats)
        self._client.sendall(shown if answer.columns else message(b"n"))

    def _columns(
        self, statement: Statement, oids: Sequence[int], values: Sequence[str] = ()
    ) -> tuple[Sequence[messages.ResultColumn], int]:
        assert self.session is not None
        if statement is _NOTHING:
            return (), 0
        match cursor_request(statement):
            case Declare() as declared:
                self._settle()
                return (), self.session.columns(declared.statement, oids, values)[1]
            case Fetch() as fetch:
                cursor = self._cursor(fetch.name)
                if fetch.moves:
                    return (), 0
                if cursor.answer is not None:
                    return cursor.answer.columns, 0
                statement, oids, values = cursor.statement, (), cursor.values
        self._settle()
        return self.session.columns(statement, oids, values)

    def _execute(self, fields: Fields) -> None:
        portal = self._known(self._portals, fields.text())
        if portal.statement is _NOTHING:
            self._client.sendall(message(b"I"))
        else:
            self._send_rows(portal, self._opened(portal), fields.int32())

    def _opened(self, portal: Portal) -> Answer:
        """The answer of a portal, whose statement is run once."""
        if portal.answer is None:
            portal.answer = Answer("") if portal.statement is _NOTHING else self._run(portal)
        return portal.answer

    def _run(self, portal: Portal) -> Answer:
        assert self.session is not None
        match cursor_request(portal.statement):
            case Declare() as declared:
                return self._declare(declared, portal.values)
            case Fetch() as fetch:
                return self._fetch(fetch, portal.formats)
            case Close(name):
                self._drop_cursors(None if name == "all" else name)
        self._settle()
        answer = self.session.run(portal.statement, portal.values, portal.formats)
        if answer.tag in ("COMMIT", "ROLLBACK") and self.session.transaction == "I":
            self._drop_cursors()
        if (found := _DEALLOCATE.fullmatch(portal.statement.text)) is not None:
            if not found[1] and found[2].upper() == "ALL":
                self._prepared.clear()
            else:
                self._prepared.pop(found[2] if found[1] else found[2].lower(), None)
        return answer

    def _declare(self, declared: Declare, values: Sequence[str]) -> Answer:
        """Declare a cursor. Its statement is checked now, and run when rows are first fetched."""
        assert self.session is not None
        self.session.check_transaction()
        if declared.name in self._portals:
            raise StatementError(f"The cursor {declared.name[:80]!r} exists already.", "Close it first.", "42P03")
        formats = (BINARY,) if declared.binary else ()
        self._settle()
        columns, _ = self.session.columns(declared.statement, (), values)
        if not columns:
            raise QuerySyntaxError("The statement of a cursor must return rows.", "Declare it for a SELECT.")
        self._portals[declared.name] = Portal(declared.statement, values, formats, cursor=True)
        return Answer("DECLARE CURSOR")

    def _fetch(self, fetch: Fetch, formats: Sequence[int]) -> Answer:
        """The next rows of a cursor. The first FETCH decides on the formats of all."""
        assert self.session is not None
        self.session.check_transaction()
        portal = self._cursor(fetch.name)
        if portal.answer is None:
            portal.formats = portal.formats or formats
        answer = self._opened(portal)
        if fetch.moves:
            return Answer(f"MOVE {sum(rows.num_rows for rows in portal.take(fetch.most))}")
        if formats and [*formats_of(formats, answer.columns)] != [*answer.formats]:
            raise RequestError("The rows of a cursor are fetched in one format.", "Request that of the first FETCH.")
        return Answer("FETCH", answer.columns, answer.formats, portal.take(fetch.most), counted=True)

    def _cursor(self, name: str) -> Portal:
        if name not in self._portals:
            raise StatementError(f"There is no cursor {name[:80]!r}.", "Declare it first.", "34000")
        return self._portals[name]

    def _drop_cursors(self, name: str | None = None) -> None:
        """Forget a cursor, or all."""
        dropped = [one for one, portal in self._portals.items() if portal.cursor and name in (None, one)]
        for one in dropped:
            del self._portals[one]

    def _send_rows(self, portal: Portal, answer: Answer, most: int) -> None:
        """Send the next rows of a portal: at most `most`, 0: all."""
        sent = 0
        for rows in portal.take(most or None):
            sent += rows.num_rows
            self._client.sendall(data_rows(rows, answer.columns, answer.formats))
        portal.sent += sent
        if most and sent == most:
            self._client.sendall(message(b"s"))
            return
        self._client.sendall(messages.complete(f"{answer.tag} {portal.sent}" if answer.counted else answer.tag))

    def _settle(self) -> None:
        """Read the rows of unfinished portals, because DuckDB gives up a result when the next statement begins."""
        left = SETTLED_BYTES
        for portal in self._portals.values():
            left -= portal.settle(left)

    def _close(self, fields: Fields) -> None:
        kind, name = fields.take(1), fields.text()
        (self._prepared if kind == b"S" else self._portals).pop(name, None)
        self._client.sendall(message(b"3"))

    def _flush(self, _fields: Fields) -> None:
        """Nothing waits to be sent."""

    def _known(self, found: Mapping[str, T], name: str) -> T:
        if name not in found:
            raise RequestError(f"There is no statement or portal {name[:80]!r}.", "Prepare it first.")
        return found[name]

    def _exactly(self, size: int) -> bytes:
        """The next bytes of a client that logs in; nothing after them is read, because TLS may begin there."""
        found = b""
        while len(found) < size:
            self._limit_time()
            part = self._client.recv(size - len(found))
            if not part:
                raise ConnectionResetError
            found += part
        return found

    def _limit_time(self) -> None:
        """Let the next operation of the socket end with the time of the login."""
        left = self._login_ends - monotonic()
        if left <= 0:
            raise TimeoutError
        self._client.settimeout(left)

    def _refuse(self, error: MillpondError | ProtocolError) -> None:
        with suppress(OSError):
            self._client.sendall(_error("FATAL", error))

    _HANDLERS: Mapping[bytes, Callable[[Connection, Fields], None]] = {
        b"P": _parse, b"B": _bind, b"D": _describe, b"E": _execute, b"C": _close, b"H": _flush,
    }  # fmt: skip


def _of_ours(error: Exception) -> MillpondError:
    if isinstance(error, MillpondError):
        return error
    _log.error("a statement failed", exc_info=error)
    return MillpondError(f"The endpoint failed: {type(error).__name__}.", "Its log says more; please report it.")


def _error(severity: str, error: MillpondError | ProtocolError) -> bytes:
    if isinstance(error, ProtocolError):
        return messages.error_response(severity, "08P01", f"{error}")
    state = getattr(error, "state", None) or next((s for kind, s in _STATES if isinstance(error, kind)), "58000")
    return messages.error_response(severity, state, f"[{error.code}] {error.what}", error.cure)
