"""Runs the tests that a change reaches, nearest first, for about a minute: `make quick`.

The change is what differs from a revision (default: the last commit), untracked files included. A test file is reached
if it changed, or if it imports a changed module, directly or through other modules. The files are run in the order of
that distance until the time is up. Tests that need Spark or a server are left to `make test`, unless they changed
themselves.

    python tests/quick.py [REVISION] [--seconds 60]
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "src" / "millpond", ROOT / "tests" / "kit")
"""What tests import: the package, and the test kit, through which many reach it."""

LIGHT = ("unit", "property", "golden", "simulation")
"""Folders of `tests/` whose tests need neither Java nor a server."""

START_SECONDS = 5
"""What pytest needs before its first test; a batch is not begun with less time than this."""


def changed_files(revision: str) -> list[Path]:
    """Paths of Python files, relative to the repository, that differ from `revision` or are untracked."""
    listed = [
        subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for arguments in (["diff", "--name-only", revision], ["ls-files", "--others", "--exclude-standard"])
    ]
    return sorted({Path(line) for text in listed for line in text.splitlines() if line.endswith(".py")})


def module_of(path: Path) -> str | None:
    """The dotted name of a source file; None if it is in neither package.

    >>> package, kit = PACKAGES
    >>> module_of(package / "log" / "port.py"), module_of(package / "log" / "__init__.py")
    ('millpond.log.port', 'millpond.log')
    >>> module_of(kit / "inputs" / "__init__.py")
    'kit.inputs'
    """
    for package in PACKAGES:
        if path.is_relative_to(package):
            parts = path.relative_to(package.parent).with_suffix("").parts
            return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return None


def distances(modules: Iterable[str]) -> dict[str, int]:
    """For each module that imports one of `modules`, how many imports it is away; 0 for these themselves."""
    graph = grimp.build_graph(*(package.name for package in PACKAGES))
    found = {module: 0 for module in modules if module in graph.modules}
    front = list(found)
    while front:
        importers = {importer for module in front for importer in graph.find_modules_that_directly_import(module)}
        step = found[front[0]] + 1
        front = sorted(importers - found.keys())
        found.update(dict.fromkeys(front, step))
    return found


def imported(path: Path) -> Iterator[str]:
    """Modules, and names in them that may be modules, which a test file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def reached(changed: list[Path]) -> list[tuple[int, Path]]:
    """Test files that a change reaches, as (distance, path), nearest first."""
    modules = [module for path in changed if (module := module_of(ROOT / path)) is not None]
    away = distances(modules)
    found: list[tuple[int, Path]] = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        inside = path.relative_to(ROOT)
        if inside in changed:
            found.append((0, inside))
        elif inside.parts[1] in LIGHT:
            near = [away[module] for module in imported(path) if module in away]
            found += [(min(near) + 1, inside)] if near else []
    return sorted([*found, (2, Path("tests/test_architecture.py"))] if away else found)


def run(files: list[Path], seconds: float) -> int | None:
    """Pytest's exit status for `files`, or None if the time was up first."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "--dist", "worksteal", *map(str, files)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            return None


def main() -> int:
    """Run what is reached; exit with 1 if a test failed, else with 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", nargs="?", default="HEAD", help="what the change is compared with (default: HEAD)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to run (default: 60)")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    batches = [
        (distance, [path for _, path in files])
        for distance, files in groupby(reached(changed_files(options.revision)), key=lambda found: found[0])
    ]
    if not batches:
        print(f"No test is reached by what differs from {options.revision}.")
    for number, (distance, files) in enumerate(batches):
        left = end - time.monotonic()
        print(f"{len(files)} test files at distance {distance}", flush=True)
        status = run(files, left) if left > START_SECONDS else None
        if status is None:
            rest = sum(len(files) for _, files in batches[number:])
            print(f"The time is up: {rest} test files did not run, or not to their end. `make test` runs all of them.")
            return 0
        if status not in (0, 5):  # 5: every test of the batch is deselected
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
