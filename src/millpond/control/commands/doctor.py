"""`millpond doctor`: checks whether a pond would run on this machine, by trying each requirement without Spark.

Probe files are written to a hidden folder that is removed afterwards. A running pond is not disturbed.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import tempfile
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec
from rich.console import Console

from millpond.clock import Clock, lap_us
from millpond.connections import is_loopback, unencrypted
from millpond.control.wiring.pond_reader import read_truth
from millpond.control.wiring.stores_and_followers import network_store, open_in_context, open_rows
from millpond.control.wiring.truth import holds_pond, holds_something, host_cache
from millpond.errors import MillpondError, PlaceError
from millpond.followers.sinks.kinds import SINKS, sink_kind
from millpond.log.check_create_if_absent import check_create_if_absent
from millpond.log.locations.address import Address, address_of
from millpond.log.locations.local_folder import LocalFolder
from millpond.log.port import Folder
from millpond.model.spec import BUCKETS
from millpond.placement.slots import hash_tags
from millpond.runtime.task.numa import SWITCH, Node, is_off, read_nodes, usable
from millpond.spark.session.class_archive import archive_path
from millpond.spark.session.jars import connector_origin
from millpond.spark.session.java import find_java
from millpond.state.backends.kinds import StoreContext, known_store, shown, store_kind, store_path
from millpond.state.ports.store import Apply, BucketStore, ReadRequest, TableWrite, Verdict
from millpond.tokens import writer_token

REQUIRED = {
    "pyspark": "==4.3.*",
    "pyarrow": ">=19",
    "numpy": ">=1.26",
    "pandas": ">=2.2,<3",
    "lmdb": ">=1.5",
    "msgspec": ">=0.19",
    "obstore": ">=0.8",
}
"""Library -> versions that are supported, as in pyproject.toml."""

MIB, GIB = 1 << 20, 1 << 30
LEAST_HEAP = 450 * MIB
"""Spark refuses to start with less: 1.5 times the 300 MiB that it reserves."""

WORKERS = 512 * MIB
"""The approximate memory of Python beside the JVM: the driver and the workers of a small pond."""

SLOW_FSYNC_MS, SLOW_PUT_MS = 50.0, 200.0
_FSYNCS = 5
_ROUNDS = 8
_SIZE = re.compile(r"(\d+)([kmgt])", re.IGNORECASE)
_REMOTE = re.compile(r"nfs|cifs|smb|9p|afs|ceph|gluster|lustre|gpfs|beegfs|fuse\.|virtiofs|vboxsf", re.IGNORECASE)
_FLEETING = ("tmpfs", "ramfs", "overlay")

Finding = Literal["ok", "warning", "problem"]


class Check(msgspec.Struct, frozen=True):
    """The result of one check; a `problem` would stop a pond, a `warning` means that it is slow or its data unsafe."""

    name: str
    verdict: Finding
    what: str
    cure: str = ""


class Target(NamedTuple):
    """What to examine: the pond's folder (None: where ponds would be created), its store, and the JVM's heap."""

    folder: Path | None = None
    store: str = "lmdb"
    memory: str = "2g"


def examine(target: Target, clock: Clock = lap_us) -> Iterator[Check]:
    """Yields the result of each check as soon as it is done; never raises, and writes only to a hidden probe folder."""
    yield check_python(sys.version_info[:3])
    yield check_libraries()
    yield check_java(os.environ)
    yield check_memory(target.memory, *machine_memory())
    yield check_nodes(read_nodes(), os.environ)
    yield check_ports()
    yield Check("kafka", "ok", connector_origin())
    yield check_encryption(os.environ, target.store)
    yield check_sink_packages()
    yield check_space("temp", Path(tempfile.gettempdir()))
    yield from check_place(target, clock)


def print_check(console: Console, check: Check) -> None:
    """Print one check as a line, in colour on a terminal, and the advice below it."""
    style = {"ok": "green", "warning": "yellow", "problem": "red"}[check.verdict]
    console.print(f"{check.verdict:<8}", style=style, end="")
    console.print(f" {check.name:<10} {_indented(console, check.what)}")
    if check.cure:
        console.print(f"{'':<19} → {_indented(console, check.cure)}")


def _indented(console: Console, text: str) -> str:
    """A text that begins in column 20, or behind the arrow of an advice, wrapped at the width of a terminal."""
    if not console.is_terminal:
        return text
    width = max(20, console.width - 22)
    return f"\n{'':<20}".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))


def check_python(version: tuple[int, int, int]) -> Check:
    """Check the version of Python."""
    text = ".".join(map(str, version))
    if version < (3, 10):
        return Check("python", "problem", f"Python {text} is too old.", "Use Python 3.10 or later.")
    return Check("python", "ok", f"Python {text} ({sys.executable})")


def check_libraries(installed: Callable[[str], str] = metadata.version) -> Check:
    """Check that the versions of the libraries are supported."""
    versions, wrong = [], {}
    for name, wanted in REQUIRED.items():
        try:
            version = installed(name)
        except metadata.PackageNotFoundError:
            wrong[name] = f"{name} is missing"
            continue
        versions.append(f"{name} {version}")
        if not is_supported(version, wanted):
            wrong[name] = f"{name} is {version}, not {wanted}"
    if wrong:
        needed = " ".join(f"'{name}{REQUIRED[name]}'" for name in wrong)
        return Check("libraries", "problem", f"{'; '.join(wrong.values())}.", f"Run `pip install {needed}`.")
    return Check("libraries", "ok", ", ".join(versions))


def is_supported(version: str, wanted: str) -> bool:
    """Whether a version meets bounds such as `>=2.2,<3` or `==4.3.*`.

    >>> is_supported("2.10.1", ">=2.2,<3"), is_supported("3.0.0", ">=2.2,<3"), is_supported("4.3.1", "==4.3.*")
    (True, False, True)
    """
    have = _numbers(version)
    for bound in wanted.split(","):
        number = _numbers(bound.lstrip("<>="))
        if bound.startswith("==") and have[: len(number)] != number:
            return False
        if bound.startswith(">=") and have < number:
            return False
        if bound.startswith("<") and have >= number:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found.group().split("."))) if found else ()


def check_java(environ: Mapping[str, str]) -> Check:
    """Check the Java that a pond would start, by its version only."""
    try:
        java = find_java(environ)
    except MillpondError as error:
        return Check("java", "problem", error.what, error.cure)
    start = "it starts fast" if archive_path(java, environ).is_file() else "`millpond prepare` makes it start faster"
    return Check("java", "ok", f"Java {java.major} ({java.origin}: {java.home}); {start}")


def machine_memory() -> tuple[int, int | None]:
    """The memory of this machine or container in bytes, and how much of it is free (None: not known)."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = _first_number("/proc/meminfo", r"MemAvailable:\s+(\d+) kB")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        total = min(total, _first_number(limit, r"(\d+)") or total)
    return total, None if available is None else min(available * 1024, total)


def _first_number(path: str, pattern: str) -> int | None:
    try:
        found = re.search(pattern, Path(path).read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError):
        return None
    return int(found.group(1)) if found else None


def check_memory(wanted: str, total: int, available: int | None) -> Check:
    """Check the heap that the JVM would get against the memory of the machine, in bytes."""
    match = _SIZE.fullmatch(wanted)
    if match is None:
        return Check("memory", "problem", f"--memory {wanted} is not a size.", "Write it like 2g or 900m.")
    heap = int(match.group(1)) << {"k": 10, "m": 20, "g": 30, "t": 40}[match.group(2).lower()]
    available_text = f"{_size(total)}" + ("" if available is None else f", {_size(available)} free")
    if heap < LEAST_HEAP:
        return Check("memory", "problem", f"--memory {wanted}: Spark needs 450m to start.", "Use 1g or more.")
    fits = max(LEAST_HEAP, (total - WORKERS) // 2)
    cure = f"Use less, such as --memory {fits // MIB}m, or use a larger machine."
    if heap >= total:
        return Check("memory", "problem", f"--memory {wanted} is more than this machine has ({available_text}).", cure)
    if heap + WORKERS > total or (available is not None and heap + WORKERS > available):
        return Check("memory", "warning", f"--memory {wanted} leaves little for Python ({available_text}).", cure)
    return Check("memory", "ok", f"--memory {wanted} of {available_text}")


def check_nodes(nodes: Sequence[Node], environ: Mapping[str, str], allowed: Collection[int] | None = None) -> Check:
    """Report the NUMA nodes, and whether instances are bound to them; `allowed`: the CPUs of this process."""
    if environ.get(SWITCH) not in (None, "", "on", "off"):
        return Check(
            "numa", "warning", f"{SWITCH} is {environ[SWITCH]!r}, which means on.", f"Set {SWITCH} to on or off."
        )
    if allowed is None:
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    found = usable(nodes, allowed)
    if len(found) < 2:
        return Check("numa", "ok", "one NUMA node: instances are not bound to CPUs")
    each = ", ".join(f"node {node.number}: {len(node.cpus)} CPUs, {_size(node.memory)}" for node in found)
    bound = f"are not bound ({SWITCH}=off)" if is_off(environ) else f"take turns on them ({SWITCH}=off switches it off)"
    return Check("numa", "ok", f"{len(found)} NUMA nodes ({each}); instances {bound}")


def check_ports(host: str = "127.0.0.1") -> Check:
    """Check that loopback ports can be bound and reached, because Spark and Python communicate over them."""
    try:
        with socket.create_server((host, 0)) as server, socket.create_server((host, 0)):
            server.settimeout(5)
            with socket.create_connection(server.getsockname(), timeout=5) as near:
                far, _ = server.accept()
                with far:
                    near.sendall(b"?")
                    far.settimeout(5)
                    if far.recv(1) != b"?":
                        raise OSError("the data that was sent did not arrive")
    except OSError as error:
        return Check(
            "ports", "problem", f"No port of {host} can be bound and reached: {error}.",
            "Allow connections of this machine to itself: check its firewall and its limit of open files.",
        )  # fmt: skip
    return Check("ports", "ok", f"ports of {host} can be bound and reached")


def check_encryption(environ: Mapping[str, str], store: str) -> Check:
    """Check that named connections, and a store on the network, use encryption to other hosts."""
    try:
        warnings, kind = unencrypted(environ), known_store(store)
    except MillpondError as error:
        return Check("encryption", "problem", error.what, error.cure)
    if kind is not None and kind.reach == "network" and store.partition(":")[0] not in kind.encrypted:
        host = urlsplit(store).hostname or ""
        if not is_loopback(host):
            use = f"Use {kind.encrypted[0]}://." if kind.encrypted else ""
            what = f"The store {shown(store)} is not encrypted on its way to {host}"
            warnings.append(f"{what}: others may read rows and passwords. {use}")
    if warnings:
        return Check("encryption", "warning", " ".join(warnings), "Or make sure that the network is private.")
    return Check("encryption", "ok", "no connection to another host is unencrypted")


def check_sink_packages() -> Check:
    """Check that the sinks that installed packages register can be imported."""
    for name in SINKS.names():
        try:
            sink_kind(name)
        except MillpondError as error:
            return Check("sinks", "problem", error.what, error.cure)
    return Check("sinks", "ok", ", ".join(SINKS.names()))


def check_space(name: str, folder: Path) -> Check:
    """Check the free space of the disk of `folder`."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check(name, "problem", f"{folder} cannot be examined: {error}.", "Name another folder.")
    if free < 100 * MIB or not os.access(folder, os.W_OK):
        what = f"{_size(free)} free" if os.access(folder, os.W_OK) else "may not be written"
        return Check(name, "problem", f"{folder}: {what}.", "Make room, or set TMPDIR or --checkpoint elsewhere.")
    if free < GIB:
        return Check(name, "warning", f"{folder}: {_size(free)} free.", "Make room: state and sinks grow.")
    return Check(name, "ok", f"{folder}: {_size(free)} free")


def check_place(target: Target, clock: Clock) -> Iterator[Check]:
    """Check the pond's folder: its pond, write access, create-if-absent, fsync, free space, kind of disk, store."""
    address = address_of(target.folder or ".")
    if (folder := address.path) is None:
        yield from _check_remote(address, target, clock)
        return
    existing = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    yield _pond(address, named=target.folder is not None)
    probe = existing / f".doctor-{writer_token()}"
    try:
        try:
            records = LocalFolder(probe)
        except PlaceError as error:
            yield Check("folder", "problem", error.what, "Name a folder that you may write, with --checkpoint.")
            return
        yield Check("folder", "ok", f"{existing} can be written")
        yield _race(records, clock)
        yield _writes(records, clock, "fsync", "Use a faster disk, or a local one.", SLOW_FSYNC_MS)
        yield check_space("space", existing)
        yield check_disk(existing, _mounts())
        yield check_store(target.store, address, probe)
    finally:
        shutil.rmtree(probe, ignore_errors=True)


def _check_remote(address: Address, target: Target, clock: Clock) -> Iterator[Check]:
    """Check an object store or HDFS: its pond, create-if-absent, time of a request, this host's copies, store."""
    pond = _pond(address, named=True)
    yield pond
    if pond.verdict == "problem":
        return
    probe = address / f".doctor-{writer_token()}"
    yield _race(probe.folder(), clock)
    yield _writes(probe.folder(), clock, "put", "Run the pond near the store.", SLOW_PUT_MS)
    with suppress(MillpondError):
        for name in probe.folder().names():
            probe.folder().remove(name)
    copies = host_cache(address)
    yield check_space("copies", copies)
    with tempfile.TemporaryDirectory(dir=copies) as folder:
        yield check_store(target.store, address, Path(folder))


def _pond(address: Address, named: bool) -> Check:
    folder = address.path
    try:
        known = holds_pond(address)
        if known:
            truth, spec = read_truth(address)
    except MillpondError as error:
        return Check("pond", "problem", error.what, error.cure)
    if known:
        queries = "1 query" if len(spec.all_queries) == 1 else f"{len(spec.all_queries)} queries"
        return Check("pond", "ok", f"{address}: {queries}, records up to {truth.manifest.n}")
    if folder is not None and folder.exists() and not folder.is_dir():
        return Check("pond", "problem", f"{folder} is not a folder.", "Name a new or empty folder.")
    try:
        taken = named and holds_something(address)
    except PlaceError as error:
        return Check("pond", "problem", error.what, error.cure)
    if taken:
        return Check("pond", "problem", f"{address} contains files, but no pond.", "Name a new or empty folder.")
    return Check("pond", "ok", f"{address}: a pond can be created {'here' if named else 'in a subfolder'}")


def _race(records: Folder, clock: Clock) -> Check:
    began = clock()
    try:
        check_create_if_absent(records, writer_token(), rounds=_ROUNDS)
    except MillpondError as error:
        return Check("race", "problem", error.what, error.cure)
    return Check("race", "ok", f"{_ROUNDS} races to create a file, one winner each ({_ms(clock() - began)})")


def _writes(records: Folder, clock: Clock, name: str, cure: str, slow_ms: float) -> Check:
    times = []
    for i in range(_FSYNCS):
        began = clock()
        try:
            records.create(f"{name}-{i}", bytes(4096))
        except MillpondError as error:
            return Check(name, "problem", error.what, error.cure)
        times.append(clock() - began)
    median = sorted(times)[_FSYNCS // 2]
    what = f"a record is written durably in {_ms(median)}"
    if median > slow_ms * 1000:
        what = f"{what}; each epoch waits for a few such writes."
        return Check(name, "warning", what, cure)
    return Check(name, "ok", what)


def _mounts() -> str:
    try:
        return Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def check_disk(folder: Path, mounts: str) -> Check:
    """Check the kind of disk of a folder, by the system's table of mounts (empty: not known)."""
    kinds = {}
    for line in mounts.splitlines():
        words = line.split(" ")
        if len(words) > 2:
            kinds[Path(words[1].replace("\\040", " "))] = words[2]
    kind = next((kinds[parent] for parent in (folder, *folder.parents) if parent in kinds), None)
    if kind is None:
        return Check("disk", "ok", f"{folder}: the kind of disk is not known")
    if _REMOTE.search(kind):
        return Check(
            "disk", "warning", f"{folder} is on {kind}, which other machines may share.",
            "Use a local disk: LMDB needs one, and two hosts may see a shared folder differently.",
        )  # fmt: skip
    if kind in _FLEETING:
        return Check(
            "disk", "warning", f"{folder} is on {kind}, which is lost with the machine or its container.",
            "Use a persistent disk.",
        )  # fmt: skip
    return Check("disk", "ok", f"{folder} is on {kind}, a local disk")


def check_store(address: str, pond: Address, probe: Path) -> Check:
    """Check that the store opens: the existing one for reading, or a new one in `probe` by writing and reading."""
    try:
        kind = store_kind(address)
        if kind.reach == "process":
            return Check("store", "ok", f"{address}: only the driver's process can read the rows")
        truth = read_truth(pond) if holds_pond(pond) else None
        existing = store_path(address, probe if truth is None else truth[0].folder)
        if existing is not None and (truth is None or not existing.exists()):
            context = StoreContext(address, "doctor", hash_tags(BUCKETS), probe / kind.file)
            _write_and_read(shown(address), open_in_context(context))
            return Check("store", "ok", f"{address} can be created, written and read")
        if existing is not None and truth is not None:
            store: BucketStore = open_rows(address, *truth, read_only=True)
            answer = f"{address} opens"
        else:
            store = network_store(address, *(("", BUCKETS) if truth is None else (truth[0].pond, truth[1].buckets)))
            answer = f"{shown(address)} answers"
        rows = store.statistics().keys
        store.close()
        text = f", has {rows:,} rows, and {kind.assures}" if kind.assures else f" and has {rows:,} rows"
        return Check("store", "ok", f"{answer}{text}")
    except MillpondError as error:
        return Check("store", "problem", error.what, error.cure)


def _write_and_read(name: str, store: BucketStore) -> None:
    try:
        outcome = store.apply_many([Apply(0, 0, -1, [TableWrite("t", [b"k"], [b"v"])])])
        result = store.read_many([ReadRequest(0, "t", [b"k"])])[0]
        if outcome[0].verdict is not Verdict.APPLIED or result.values != [b"v"]:
            raise PlaceError(f"A new store at {name} does not return what was written to it.", "Use another disk.")
    finally:
        store.close()


def _size(size: int) -> str:
    return f"{size / GIB:,.1f} GiB" if size >= GIB else f"{size / MIB:,.0f} MiB"


def _ms(us: int) -> str:
    return f"{us / 1000:,.1f} ms"
