"""Environments of the engines: one folder each, made once per machine, outside the repository.

They are in `$XDG_CACHE_HOME/millpond/peers` (`~/.cache` if that is not set), named after the engine and a digest of
what is installed, so that another version is another environment.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from settings import HADOOP, HEAP, PACKAGES

from millpond.spark.session.jars import cache_folder, fetched, listed
from millpond.spark.session.java import find_java


class Environment(NamedTuple):
    """How programs of an engine are started: its Python, variables beside those of this process, jars of its own."""

    python: Path
    variables: Mapping[str, str]
    jars: Sequence[Path] = ()


def environment(engine: str) -> Environment:
    """The environment of an engine, installed if it is not there; `spark` and `pond` run in this one.

    Raises:
        SetupError: a jar cannot be had.
        subprocess.CalledProcessError: pip fails.
    """
    java = {"JAVA_HOME": str(find_java().home)}
    if engine in ("spark", "pond"):
        return Environment(Path(sys.executable), java)
    python = _installed(engine, PACKAGES[engine])
    if engine != "flink":
        return Environment(python, {})
    found = importlib.util.find_spec("pyspark")
    assert found is not None and found.origin is not None
    folder = Path(found.origin).parent / "jars"
    hadoop = [str(path) for name in HADOOP for path in sorted(folder.glob(f"{name}-*.jar"))]
    variables = {"JVM_ARGS": f"-Xmx{HEAP}", "HADOOP_CLASSPATH": os.pathsep.join(hadoop)}
    return Environment(python, java | variables, fetched(listed(Path(__file__).with_name("flink_jars.txt"))))


def folder_of(engine: str, packages: Sequence[str]) -> Path:
    """Where the environment of an engine is, whether it has been made or not."""
    digest = hashlib.sha256("\n".join([sys.version, *packages]).encode()).hexdigest()[:12]
    return cache_folder().parent / "peers" / f"{engine}-{digest}"


def _installed(engine: str, packages: Sequence[str]) -> Path:
    folder = folder_of(engine, packages)
    python = folder / "bin" / "python"
    if not (folder / "_DONE").exists():
        print(f"installing {' '.join(packages)} into {folder} (once)", file=sys.stderr, flush=True)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        (folder / "_DONE").touch()
    return python
