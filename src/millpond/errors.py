"""Every error that a caller may see: a tree of classes, each with a stable code; its text names a cure.

`code` is stable across versions; `retry` says whether the same call may succeed later.
Spark flattens exceptions of workers and of `foreachBatch` to text: `from_text` reads the code back.
`docs/errors.md` says for each code what it means and what to do.
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Collection

_CURE = " => "


class MillpondError(Exception):
    """Base of all errors here; `str()` is `[CODE] what happened. What to do.`

    >>> str(FencedError("Record 7 is a claim by another driver.", "Stop this driver."))
    '[MP-FENCED] Record 7 is a claim by another driver. Stop this driver.'
    """

    code = "MP-ERROR"
    retry = False
    flattened = False
    """Whether the error continues as text only, so that the text must mark where the cure begins."""

    def __init_subclass__(cls, code: str | None = None, retry: bool | None = None) -> None:
        super().__init_subclass__()
        cls.code, cls.retry = code or cls.code, cls.retry if retry is None else retry

    def __init__(self, what: str, cure: str = "") -> None:
        super().__init__(what, cure)
        self.what = what
        self.cure = cure

    def _render_traceback_(self) -> list[str]:
        """How IPython and Jupyter show the error: in one line, as the command line does."""
        return [str(self)]

    def __str__(self) -> str:
        return f"[{self.code}] {self.what}{_CURE if self.flattened else ' '}{self.cure}".rstrip()


class QueryError(MillpondError, code="MP-QUERY"):
    """The text or DataFrame of a query is wrong; nothing has run yet."""


class QuerySyntaxError(QueryError, code="MP-SYNTAX"):
    """The text does not parse as Spark SQL."""


class QueryRefused(QueryError, code="MP-REFUSED"):
    """The text parses, but names something that query text may not use."""


class UnsupportedQuery(QueryError, code="MP-UNSUPPORTED"):
    """The query is valid Spark, but not of a form that this version supports."""


class QueryTypeError(QueryError, code="MP-TYPE"):
    """A column, a function or a type does not fit."""


class ChangeRefused(QueryError, code="MP-CHANGE"):
    """The change of a running pond is not possible; nothing was changed."""


class StaleError(QueryError, code="MP-STALE"):
    """A compiled pond file is missing, or does not belong to the current SQL text."""


class InputError(MillpondError, code="MP-INPUT"):
    """Something is wrong with the input."""


class SourceError(InputError, code="MP-SOURCE", retry=True):
    """A stream cannot be read."""


class UnknownSchemaError(SourceError, code="MP-SCHEMA-ID", retry=True):
    """Records name a schema that was not known when the read began; `schema_id` finds it in `what`."""

    @classmethod
    def met(cls, stream: str, number: int | str) -> UnknownSchemaError:
        """The error for a stream and a schema's number."""
        return cls(
            f"Records of the stream {stream} name the schema {number}, which is new.",
            "The driver requests it from the registry and reads again; nothing of this epoch was committed.",
        )

    @property
    def schema_id(self) -> tuple[str, int]:
        """The stream and the schema's number."""
        found = re.match(r"Records of the stream (.+) name the schema (\d+), which is new", self.what)
        return ("", -1) if found is None else (found[1], int(found[2]))


class GoneError(SourceError, code="MP-GONE"):
    """What was read of a source once is to be read again, and is not there any more."""


class IncompleteError(InputError, code="MP-INCOMPLETE"):
    """A warning: results lack events, because these were late, dead, dropped, or in files that disappeared."""


class EmptyInputError(InputError, code="MP-EMPTY", retry=True):
    """A warning: there is no input yet; a folder may get files later."""


class LateSchemaError(InputError, code="MP-LATE-SCHEMA"):
    """A file has other columns than its stream declares, or the schema changed after the start."""


class TruthError(MillpondError, code="MP-TRUTH"):
    """The log, or a file that it names, is not as expected."""


class FencedError(TruthError, code="MP-FENCED"):
    """Another driver has claimed the log; this one must stop."""


class OffsetGapError(TruthError, code="MP-OFFSET-GAP"):
    """The offsets of Spark's batch do not continue the last record of the log."""


class AheadError(TruthError, code="MP-AHEAD"):
    """A sink has rows of a record that the log does not have: the log lost its newest records, or is an older copy."""


class CorruptError(TruthError, code="MP-CORRUPT"):
    """Stored bytes fail their digest."""


class ForeignPondError(TruthError, code="MP-FOREIGN"):
    """The folder belongs to another pond, other queries, or is no pond's folder."""


class PlaceError(TruthError, code="MP-PLACE"):
    """The folder cannot create-if-absent, or cannot be written."""


class HostError(PlaceError, code="MP-HOST"):
    """A host on which tasks run does not see the pond's folder; nothing is corrupt, and the epoch is not committed."""


class UnreachableError(PlaceError, code="MP-UNREACHABLE", retry=True):
    """An object store, or HDFS, does not answer in time; whether the request was done is unknown."""


class UserFunctionError(MillpondError, code="MP-FUNCTION"):
    """A function of a user failed; `row` is the number of the key it was at, where that is known.

    `died`: its process ended or was killed. `hungry`: it needed more memory than it may use.
    """

    row: int | None = None
    died: bool = False
    hungry: bool = False

    def at_key(self, key: str) -> UserFunctionError:
        """The same error with the key in its text.

        >>> print(UserFunctionError("The function f@1 raised ValueError.", "Mend it.").at_key('["ann"]'))
        [MP-FUNCTION] The function f@1 raised ValueError, for the key ["ann"]. Mend it.
        """
        located = UserFunctionError(f"{self.what.removesuffix('.')}, for the key {key}.", self.cure)
        located.row = self.row
        return located


class StateError(MillpondError, code="MP-STATE"):
    """Something is wrong with stored state."""


class StoreError(StateError, code="MP-STORE", retry=True):
    """The key-value store refused or vanished; the truth is untouched."""


class FilesLostError(StoreError, code="MP-FILES-LOST"):
    """The store has lost files that it carries between hosts; the driver puts them back and runs the epoch again."""


class TooManyPairsError(StateError, code="MP-PAIRS"):
    """A join without equal keys would try more pairs of events in one epoch than it may.

    Or a result that is emitted again has several rows of a table, or each result would be compared with all rows of a
    large table.
    """


class OverBudgetError(StateError, code="MP-BUDGET"):
    """A query has more state or keys, or takes more of an epoch, than its budget allows."""


class OverflowedError(StateError, code="MP-OVERFLOW"):
    """An exact number left the range of its SQL type."""


class ServiceError(MillpondError, code="MP-SERVICE"):
    """A request to a pond over the network failed."""


class RequestError(ServiceError, code="MP-REQUEST"):
    """The service does not understand the request: its path, its form or its size."""


class AccessError(ServiceError, code="MP-ACCESS"):
    """The request has no valid token, or a host or an origin that is not allowed."""


class BusyError(ServiceError, code="MP-BUSY", retry=True):
    """There are more requests at once than the service allows."""


class NotServingError(ServiceError, code="MP-NOT-SERVING", retry=True):
    """Nothing answers at the address, or it is not the pond's leader."""


class CertificateError(ServiceError, code="MP-CERTIFICATE"):
    """The server's certificate is not trusted, or is not valid for the host name of the request."""


class SetupError(MillpondError, code="MP-SETUP"):
    """Something about this machine."""


class JavaError(SetupError, code="MP-JAVA"):
    """No Java that Spark 4.3 can run on."""


class DiskFullError(SetupError, code="MP-DISK", retry=True):
    """There is no room left where something must be written."""


class NoMemoryError(SetupError, code="MP-MEMORY"):
    """The JVM or a Python process has no memory left."""


class StalledError(SetupError, code="MP-STALLED"):
    """An epoch made no progress, and its JVM was ended."""


class SparkError(SetupError, code="MP-SPARK", retry=True):
    """Spark, or a process of it, failed for a reason that is none of the others."""


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def of_machine(error: BaseException, path: object = None) -> SetupError | None:
    """The error for a Python exception that means a full disk (at `path`) or no memory; None for others.

    >>> str(of_machine(OSError(errno.ENOSPC, "No space left on device"), "/data/x"))[:70]
    '[MP-DISK] Nothing more can be written to /data/x: [Errno 28] No space '
    >>> of_machine(FileNotFoundError(errno.ENOENT, "No such file or directory")) is None
    True
    """
    number = error.errno if isinstance(error, OSError) else None
    if number in _NO_ROOM:
        return no_room(str(error), path)
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return NoMemoryError(
            f"A Python process has no memory left: {str(error).strip() or 'MemoryError'}.",
            "Run fewer instances, or give the machine more memory; committed results are not affected.",
        )
    return None


def unreadable(path: object, error: Exception) -> MillpondError:
    """That a stored file cannot be read: for lack of memory, or because it is damaged or missing."""
    return of_machine(error) or CorruptError(f"{path} cannot be read: {error}.", "Restore the file from a copy.")


def no_room(what: str, place: object = None) -> DiskFullError:
    """That nothing more can be written (to `place`), with the system's own words."""
    where = "" if place is None else f" to {place}"
    return DiskFullError(
        f"Nothing more can be written{where}: {what.rstrip('.')}.",
        "Make room and run again; committed results are not affected.",
    )


_LISTED = 20


def one_of(name: str, known: Collection[str]) -> str:
    """The cure for an unknown name: those that it resembles, and the known ones, at most twenty.

    >>> one_of("jsn", ("json", "csv")), one_of("", ("json", "csv"))
    ('Did you mean json? Use one of json, csv.', 'Use one of json, csv.')
    >>> one_of("", ()), one_of("", ["a"] * 20 + ["b"])[-17:]
    ('There are none yet.', ' a, a and 1 more.')
    """
    near = difflib.get_close_matches(name.lower(), known, 2)
    did = f"Did you mean {' or '.join(near)}? " if near else ""
    if not known:
        return "There are none yet."
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return f"{did}Use one of {', '.join([*known][:_LISTED])}{more}."


def _tree(root: type[MillpondError]) -> dict[str, type[MillpondError]]:
    """Code -> class; a subclass elsewhere without a code of its own does not take its parent's place."""
    found = {root.code: root}
    for child in root.__subclasses__():
        for code, kind in _tree(child).items():
            found.setdefault(code, kind)
    return found


def of_code(code: str) -> type[MillpondError]:
    """The class of a code; the base class for an unknown code.

    >>> of_code("MP-BUSY").__name__, of_code("MP-TOMORROW").__name__
    ('BusyError', 'MillpondError')
    """
    return _tree(MillpondError).get(code, MillpondError)


_CODE = re.compile(r"\[(MP-[A-Z-]+)\] ([^\n]*)")


def from_text(text: str) -> MillpondError | None:
    """Rebuild the error whose code is in `text`, which is Spark's text after a worker failed.

    >>> from_text("PythonException: Traceback ...\\n[MP-CORRUPT] Bad digest. => Restore it.\\n at org")
    CorruptError('Bad digest.', 'Restore it.')
    >>> from_text("[MP-CORRUPT] Bad digest. Restore it.")
    CorruptError('Bad digest. Restore it.', '')
    >>> from_text("java.lang.OutOfMemoryError") is None
    True
    """
    found = _CODE.search(text)
    if found is None:
        return None
    kind = of_code(found.group(1))
    message = found.group(2).strip()
    what, divided, cure = message.rpartition(_CURE)
    return kind(what, cure) if divided else kind(message)
