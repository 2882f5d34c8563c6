"""Every error a caller may see, drawn as a tree; each opens with a stable code and names its cure.

    MillpondError
    ├── QueryError            the text or DataFrame of a query; nothing has run yet
    │   ├── QuerySyntaxError      MP-SYNTAX        it does not parse
    │   ├── QueryRefused          MP-REFUSED       it parses, but a part of it is not allowed here
    │   ├── UnsupportedQuery      MP-UNSUPPORTED   allowed, but not a form that this version supports
    │   ├── QueryTypeError        MP-TYPE          a name or a type does not fit
    │   ├── ChangeRefused         MP-CHANGE        a change of a running pond is not possible
    │   └── StaleError            MP-STALE         a compiled file does not belong to the current SQL
    ├── InputError            the input
    │   ├── SourceError           MP-SOURCE        a stream cannot be read
    │   │   ├── UnknownSchemaError MP-SCHEMA-ID     records name a schema that was not known when the read began
    │   │   └── GoneError             MP-GONE          a backfill needs input that no longer exists
    │   ├── IncompleteError       MP-INCOMPLETE    events are missing from results; a warning, the run continues
    │   ├── EmptyInputError       MP-EMPTY         there is no input yet; a warning, the run continues
    │   └── LateSchemaError       MP-LATE-SCHEMA   a file's columns are not those that the stream declares
    ├── TruthError            the log and the files that it names
    │   ├── FencedError           MP-FENCED        another driver has taken over
    │   ├── OffsetGapError        MP-OFFSET-GAP    Spark's checkpoint does not continue the log
    │   ├── AheadError            MP-AHEAD         a sink has rows of a record that the log does not have
    │   ├── CorruptError          MP-CORRUPT       stored bytes do not match their digest
    │   ├── ForeignPondError      MP-FOREIGN       the folder holds another pond, or none
    │   └── PlaceError            MP-PLACE         the folder cannot create-if-absent, or cannot be written
    │       ├── HostError             MP-HOST          a host of executors does not see the pond's folder
    │       └── UnreachableError      MP-UNREACHABLE   an object store, or HDFS, does not answer
    ├── UserFunctionError     MP-FUNCTION      a user function raised, hung, crashed or returned a wrong type
    ├── StateError            stored state
    │   ├── StoreError            MP-STORE         the key-value store refused or is unavailable
    │   │   └── FilesLostError    MP-FILES-LOST    the store lost files that it carries between hosts
    │   ├── TooManyPairsError     MP-PAIRS         a join without equal keys would try too many pairs
    │   ├── OverBudgetError       MP-BUDGET        a query costs more than its budget
    │   └── OverflowedError       MP-OVERFLOW      an exact number does not fit its type
    ├── ServiceError          a request to a pond over the network
    │   ├── RequestError          MP-REQUEST       the service does not understand the request
    │   ├── AccessError           MP-ACCESS        no token, or a host or origin that is not allowed
    │   ├── BusyError             MP-BUSY          too many requests at once
    │   ├── NotServingError       MP-NOT-SERVING   nothing answers at the address, or it does not lead
    │   └── CertificateError      MP-CERTIFICATE   the server's certificate is not trusted or has another name
    └── SetupError            this machine, and Spark on it
        ├── JavaError             MP-JAVA          no usable Java
        ├── DiskFullError         MP-DISK          no room left to write
        ├── NoMemoryError         MP-MEMORY        no memory left
        ├── StalledError          MP-STALLED       an epoch made no progress
        └── SparkError            MP-SPARK         Spark failed for a reason of its own

`code` is stable across versions; `retry` says whether the same call may succeed later.
Spark flattens exceptions of workers and of `foreachBatch` to text: `from_text` reads the code back.
`docs/errors.md` says for each code what it means and what to do.
"""

from __future__ import annotations

import errno
import re

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

    def __init__(self, what: str, cure: str = "") -> None:
        super().__init__(what, cure)
        self.what = what
        self.cure = cure

    def __str__(self) -> str:
        return f"[{self.code}] {self.what}{_CURE if self.flattened else ' '}{self.cure}".rstrip()


class QueryError(MillpondError):
    """The text or DataFrame of a query is wrong; nothing has run yet."""

    code = "MP-QUERY"


class QuerySyntaxError(QueryError):
    """The text does not parse as Spark SQL."""

    code = "MP-SYNTAX"


class QueryRefused(QueryError):
    """The text parses, but names something that query text may not use."""

    code = "MP-REFUSED"


class UnsupportedQuery(QueryError):
    """The query is valid Spark, but not of a form that this version supports."""

    code = "MP-UNSUPPORTED"


class QueryTypeError(QueryError):
    """A column, a function or a type does not fit."""

    code = "MP-TYPE"


class ChangeRefused(QueryError):
    """The change of a running pond is not possible; nothing was changed."""

    code = "MP-CHANGE"


class StaleError(QueryError):
    """A compiled pond file is missing, or does not belong to the current SQL text."""

    code = "MP-STALE"


class InputError(MillpondError):
    """Something is wrong with the input."""

    code = "MP-INPUT"


class SourceError(InputError):
    """A stream cannot be read."""

    code = "MP-SOURCE"
    retry = True


class UnknownSchemaError(SourceError):
    """Records name a schema that was not known when the read began; `schema_id` finds it in `what`."""

    code = "MP-SCHEMA-ID"
    retry = True

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


class GoneError(SourceError):
    """What was read of a source once is to be read again, and is not there any more."""

    code = "MP-GONE"


class IncompleteError(InputError):
    """A warning: results lack events, because these were late, dead, dropped, or in files that disappeared."""

    code = "MP-INCOMPLETE"


class EmptyInputError(InputError):
    """A warning: there is no input yet; a folder may get files later."""

    code = "MP-EMPTY"
    retry = True


class LateSchemaError(InputError):
    """A file has other columns than its stream declares, or the schema changed after the start."""

    code = "MP-LATE-SCHEMA"


class TruthError(MillpondError):
    """The log, or a file that it names, is not as expected."""

    code = "MP-TRUTH"


class FencedError(TruthError):
    """Another driver has claimed the log; this one must stop."""

    code = "MP-FENCED"


class OffsetGapError(TruthError):
    """The offsets of Spark's batch do not continue the last record of the log."""

    code = "MP-OFFSET-GAP"


class AheadError(TruthError):
    """A sink has rows of a record that the log does not have: the log lost its newest records, or is an older copy."""

    code = "MP-AHEAD"


class CorruptError(TruthError):
    """Stored bytes fail their digest."""

    code = "MP-CORRUPT"


class ForeignPondError(TruthError):
    """The folder belongs to another pond, other queries, or is no pond's folder."""

    code = "MP-FOREIGN"


class PlaceError(TruthError):
    """The folder cannot create-if-absent, or cannot be written."""

    code = "MP-PLACE"


class HostError(PlaceError):
    """A host on which tasks run does not see the pond's folder; nothing is corrupt, and the epoch is not committed."""

    code = "MP-HOST"


class UnreachableError(PlaceError):
    """An object store, or HDFS, does not answer in time; whether the request was done is unknown."""

    code = "MP-UNREACHABLE"
    retry = True


class UserFunctionError(MillpondError):
    """A function of a user failed; `row` is the number of the key it was at, where that is known.

    `died`: its process ended or was killed. `hungry`: it needed more memory than it may use.
    """

    code = "MP-FUNCTION"
    row: int | None = None
    died: bool = False
    hungry: bool = False

    def at_key(self, key: str) -> UserFunctionError:
        """The same error with the key in its text.

        >>> print(UserFunctionError("The function f@1 raised ValueError.", "Mend it.").at_key('["ann"]'))
        [MP-FUNCTION] The function f@1 raised ValueError, for the key ["ann"]. Mend it.
        """
        told = UserFunctionError(f"{self.what.removesuffix('.')}, for the key {key}.", self.cure)
        told.row = self.row
        return told


class StateError(MillpondError):
    """Something is wrong with stored state."""

    code = "MP-STATE"


class StoreError(StateError):
    """The key-value store refused or vanished; the truth is untouched."""

    code = "MP-STORE"
    retry = True


class FilesLostError(StoreError):
    """The store has lost files that it carries between hosts; the driver puts them back and runs the epoch again."""

    code = "MP-FILES-LOST"


class TooManyPairsError(StateError):
    """A join without equal keys would try more pairs of events in one epoch than it may."""

    code = "MP-PAIRS"


class OverBudgetError(StateError):
    """A query has more state or keys, or takes more of an epoch, than its budget allows."""

    code = "MP-BUDGET"


class OverflowedError(StateError):
    """An exact number left the range of its SQL type."""

    code = "MP-OVERFLOW"


class ServiceError(MillpondError):
    """A request to a pond over the network failed."""

    code = "MP-SERVICE"


class RequestError(ServiceError):
    """The service does not understand the request: its path, its form or its size."""

    code = "MP-REQUEST"


class AccessError(ServiceError):
    """The request has no valid token, or a host or an origin that is not allowed."""

    code = "MP-ACCESS"


class BusyError(ServiceError):
    """There are more requests at once than the service allows."""

    code = "MP-BUSY"
    retry = True


class NotServingError(ServiceError):
    """Nothing answers at the address, or it is not the pond's leader."""

    code = "MP-NOT-SERVING"
    retry = True


class CertificateError(ServiceError):
    """The server's certificate is not trusted, or is not valid for the host name of the request."""

    code = "MP-CERTIFICATE"


class SetupError(MillpondError):
    """Something about this machine."""

    code = "MP-SETUP"


class JavaError(SetupError):
    """No Java that Spark 4.3 can run on."""

    code = "MP-JAVA"


class DiskFullError(SetupError):
    """There is no room left where something must be written."""

    code = "MP-DISK"
    retry = True


class NoMemoryError(SetupError):
    """The JVM or a Python process has no memory left."""

    code = "MP-MEMORY"


class StalledError(SetupError):
    """An epoch made no progress, and its JVM was ended."""

    code = "MP-STALLED"


class SparkError(SetupError):
    """Spark, or a process of it, failed for a reason that is none of the others."""

    code = "MP-SPARK"
    retry = True


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def of_machine(error: BaseException, place: object = None) -> SetupError | None:
    """That there is no room (at `place`) or no memory, if that is what an exception of Python's says.

    >>> str(of_machine(OSError(errno.ENOSPC, "No space left on device"), "/data/x"))[:70]
    '[MP-DISK] Nothing more can be written to /data/x: [Errno 28] No space '
    >>> of_machine(FileNotFoundError(errno.ENOENT, "No such file or directory")) is None
    True
    """
    number = error.errno if isinstance(error, OSError) else None
    if number in _NO_ROOM:
        return no_room(str(error), place)
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
    told = found.group(2).strip()
    what, divided, cure = told.rpartition(_CURE)
    return kind(what, cure) if divided else kind(told)
