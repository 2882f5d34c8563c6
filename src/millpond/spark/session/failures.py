"""Turns a failure that Spark reports into a `MillpondError` with a code, one line and advice.

Spark flattens every failure, in a worker, in a callback or in its JVM, to pages of text. An error of ours is read
back from that text. Failures of files, disks and memory are recognised by Spark's messages. Everything else becomes
`SparkError` with the innermost reason. The trace stays available as `__cause__`.
"""

from __future__ import annotations

import re
from contextlib import suppress
from signal import Signals
from typing import NamedTuple

from py4j.protocol import Py4JError, Py4JNetworkError

from millpond.errors import (
    LateSchemaError,
    MillpondError,
    NoMemoryError,
    OffsetGapError,
    SetupError,
    SourceError,
    SparkError,
    from_text,
    no_room,
)
from millpond.spark.session.worker import SAME_VERSION_CURE

_EXIT_FOR_MEMORY = 52
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded|File too large")
_MEMORY = re.compile(
    r"java\.lang\.OutOfMemoryError(?:: [^\n]*)?|\[UNABLE_TO_ACQUIRE_MEMORY\][^\n]*"
    rf"|ExecutorLostFailure[^\n]* (?:exit(?:ed with)? code:?|status:?) {_EXIT_FOR_MEMORY}\b"
)
_THROWN = re.compile(r"^: (?:[\w.$]+\.)?([\w$]+(?:: [^\n]*)?)$", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+\.)?([\w$]+(?:: [^\n]*)?)$", re.MULTILINE)
_PYTHON = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Exit|Interrupt)(?:: [^\n]*)?)$", re.MULTILINE)


class _Rule(NamedTuple):
    """The error for failures whose text has a pattern.

    In the two sentences, `{0}` is the found text and `{1}`, `{2}` are its groups; `{reason}` is the innermost reason.
    """

    pattern: str
    error: type[MillpondError]
    what: str
    cure: str


_RULES = (
    _Rule(
        r"((?:The value [^\n]* in the config |Invalid Spark config: )[^\n]*?)\.?(?: SQLSTATE[^\n]*)?(?:\n|$)",
        SetupError, "Spark refuses a setting: {1}.", "Correct it (--conf, or conf in millpond.toml).",
    ),
    _Rule(
        r"(?m)(?:MemoryError|ArrowMemoryError)(?:: [^\n]*)?$|Cannot allocate memory", NoMemoryError,
        "A Python process has no memory left: {0}.",
        "Run fewer instances, or give the machine more memory; committed results are not affected.",
    ),
    _Rule(
        r"ClassNotFoundException: (?:Class )?([\w.$]+FileSystem)\b|No FileSystem for scheme \"(\w+)\"", SourceError,
        "Spark has no file system for this path: {1}{2} is missing.",
        "Add the jar of that file system to Spark (for s3a:// hadoop-aws of Spark's Hadoop version) by spark.jars"
        " or spark.jars.packages in conf/spark-defaults.conf, and name its folder in SPARK_CONF_DIR.",
    ),
    _Rule(
        r"\[KAFKA_DATA_LOSS[.\w]*\] [^\n]*|[^\n]*[Ss]ome data may have been lost[^\n]*", OffsetGapError,
        "Kafka no longer has the next records: {0}.",
        "Its retention deleted records before they were read. Set failOnDataLoss 'false' in the stream's OPTIONS to"
        " continue with the remaining ones; committed results are not affected.",
    ),
    _Rule(
        r"kafka\.common\.errors\.((?:Sasl|Ssl)\w*Exception|\w*AuthorizationException): ([^\n]*)", SourceError,
        "Kafka refuses its reader: {1}: {2}.",
        "Correct user, password, certificates or rights of the connection; committed results are not affected.",
    ),
    _Rule(
        r"kafka\.common\.errors\.UnknownTopicOrPartitionException", SourceError,
        "Kafka does not have a topic of a stream.", "Create it, or correct its name: subscribe '…'.",
    ),
    _Rule(
        r"kafka\.common\.errors\.TimeoutException: ([^\n]*)", SourceError,
        "Kafka does not answer: {1}.",
        "Check that it runs and that the connection has the right servers. Committed results are not affected.",
    ),
    _Rule(
        r"while reading file (\S+?)\.? (Data type mismatches [^\n]*?)(?:\.? SQLSTATE|\n|$)", LateSchemaError,
        "{1} does not fit its stream: {2}.",
        "Remove the file or correct the declaration; nothing of its epoch was committed.",
    ),
    _Rule(
        r"\[FAILED_READ_FILE[.\w]*\] [^\n]*?file (\S+?)\.?(?:\s|$)", SourceError,
        "{1} cannot be read: {reason}.", "Mend the file or take it away; nothing of its epoch was committed.",
    ),
    _Rule(
        r"\[MALFORMED_RECORD_IN_PARSING[.\w]*\] ([^\n]*)", SourceError,
        "A record cannot be read: {1}.",
        "Mend it, or use the mode PERMISSIVE; nothing of its epoch was committed.",
    ),
    _Rule(
        r"Master removed our application: \w+|All masters are unresponsive[^\n]*", SparkError,
        "The cluster ended this application: {0}.",
        "Its executors failed again and again: see their output in the work folder of a worker. They need Java 17"
        " or 21, and Python with the same packages as here.",
    ),
    _Rule(
        r"Python worker exited unexpectedly[^\n]*|EOFException: Python worker[^\n]*", SparkError,
        "A Python worker died more often than Spark retries: {0}.",
        "Often the system killed it for its memory: run fewer instances, or give the machine more.",
    ),
    _Rule(
        r"Cannot run program \"([^\"]*python[^\"]*)\"", SparkError,
        "An executor cannot start {1}.",
        "Set PYSPARK_PYTHON to the path of Python on the hosts of executors; of an archive of spark.archives"
        " ARCHIVE#NAME it begins with ./NAME/.",
    ),
    _Rule(
        r"\[PYTHON_VERSION_MISMATCH\] \D*(\d+\.\d+)\D+(\d+\.\d+)", SparkError,
        "An executor has Python {1}, and the driver has {2}.",
        "Set PYSPARK_PYTHON to a Python {2} on the hosts of executors.",
    ),
    _Rule(
        r"Can't get attribute '[^']*' on <module 'millpond\b[^>]*>", SparkError,
        "A Python worker has another version of Millpond than the driver.", SAME_VERSION_CURE,
    ),
    _Rule(
        r"ModuleNotFoundError: No module named '([^']+)'", SparkError,
        "A Python worker of Spark does not find the module {1}.",
        "Install it where Spark's workers run (PYSPARK_PYTHON names their Python), or set PYTHONPATH there.",
    ),
    _Rule(r"", SparkError, "Spark failed: {reason}.", "Run with -v for the trace; committed results are not affected."),
)  # fmt: skip
"""The first one that a failure has applies; the last one applies to all."""


def explained(error: Exception) -> MillpondError:
    """The `MillpondError` for an exception raised by Spark; a `MillpondError` is returned unchanged."""
    if isinstance(error, MillpondError):
        return error
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return jvm_gone()
    try:
        text = str(error)
    except Py4JError:  # the text of an exception is fetched from the JVM, which may have ended
        return jvm_gone()
    return from_text(text) or _of_machine(text) or _of_rules(text)


def jvm_gone(status: int | None = None) -> MillpondError:
    """The error for a driver's JVM that has ended; Spark ends it with status 52 when memory runs out."""
    if status == _EXIT_FOR_MEMORY:
        return _heap_full("it has ended")
    if status is not None and status < 0:
        return SparkError(f"The JVM of the driver was ended by {signal_name(-status)}.", killed_cure(-status))
    return SparkError(
        "The JVM of the driver has ended" + ("." if status is None else f" with status {status}."),
        "See its output above; if it lacked memory, give it more (--memory). Committed results are not affected.",
    )


def signal_name(number: int) -> str:
    """The name of a signal, for people.

    >>> signal_name(9), signal_name(99)
    ('signal 9 (SIGKILL)', 'signal 99')
    """
    with suppress(ValueError):
        return f"signal {number} ({Signals(number).name})"
    return f"signal {number}"


def killed_cure(number: int) -> str:
    """What to do about a process that a signal ended."""
    if number == Signals.SIGKILL:
        return (
            "It was killed, often by the system because memory is short: give the machine or container more, or the JVM"
            " less (--memory). Committed results are not affected."
        )
    return "See its output above. Committed results are not affected."


def _heap_full(what: str) -> NoMemoryError:
    return NoMemoryError(
        f"The JVM has no memory left: {what}.",
        "Give it more (--memory), or let a batch read less (maxFilesPerTrigger); committed results are not affected.",
    )


def _of_machine(text: str) -> MillpondError | None:
    if found := _NO_ROOM.search(text):
        return no_room(found.group())
    if found := _MEMORY.search(text):
        return _heap_full(found.group())
    return None


def _of_rules(text: str) -> MillpondError:
    rule, found = next((rule, found) for rule in _RULES if (found := re.search(rule.pattern, text)))
    parts = [_shortened(part or "") for part in (found.group(), *found.groups())]
    return rule.error(rule.what.format(*parts, reason=_innermost(text)), rule.cure.format(*parts))


def _innermost(text: str) -> str:
    """The innermost reason: the last cause of a Java trace or what it begins with, else the last line of a Python
    trace, else the first line.
    """
    if causes := _CAUSE.findall(text) or _THROWN.findall(text):
        return _shortened(causes[-1])
    if raised := _PYTHON.findall(text):
        return _shortened(raised[-1])
    lines = [line for line in text.splitlines() if line.strip()]
    return _shortened(lines[0]) if lines else "it says nothing"


def _shortened(text: str) -> str:
    plain = " ".join(text.split(" SQLSTATE:")[0].split()).rstrip(".")
    return plain if len(plain) <= 300 else f"{plain[:297]}..."
