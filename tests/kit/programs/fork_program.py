"""The process that forks programs for tests (`forked_program`); it ends when the test process does.

A program is forked twice, and the process between them ends at once, so that the program becomes a child of the test
process. Forking is safe although NumPy and Arrow have started a thread each: OpenBLAS (NumPy) and jemalloc (Arrow) stop
and restart theirs around a fork.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any

MODULES = ("pandas", "pyspark.sql", "millpond.cli", "millpond.service.server.app", "millpond.testing.sink_program",
           "millpond.control.commands.run", "uvicorn")  # fmt: skip
"""What the programs of tests import."""


def main(descriptor: int, modules: Sequence[str]) -> dict[str, Any]:
    """Load the modules and fork a process for each request; returns in the forked process, with its request."""
    for name in modules or MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests and their programs
    with socket.socket(fileno=descriptor) as requests:
        while True:
            head, files, *_ = socket.recv_fds(requests, 8, 8)
            if len(head) != 8:
                sys.exit()
            body = b""
            while len(body) < int.from_bytes(head, "big"):
                body += requests.recv(1 << 20)
            program = forked()
            if program == 0:
                break
            requests.sendall(program.to_bytes(8, "big"))
            for file in files:
                os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
    request = dict(json.loads(body))
    above = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 1 + max(request["files"])) for file in files]
    for file in files:
        os.close(file)
    for number, file in zip(request["files"], above, strict=True):
        os.dup2(file, number)
        os.close(file)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if number in request["files"]:  # the inherited stream remembers whether the inherited file can seek
            errors, lines = getattr(sys, name).errors, name == "stderr" or os.isatty(number)
            stream = open(number, "w", 1 if lines else -1, errors=errors, closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
    return request


def forked() -> int:
    """Fork a process that runs once its parent has ended; its process id, and 0 in that process."""
    here, there = socket.socketpair()
    with here, there, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads, which are safe here
        between = os.fork()
        if between == 0:
            program = os.fork()
            if program == 0:
                here.close()
                there.recv(1)
                return 0
            there.sendall(program.to_bytes(8, "big"))
            os._exit(0)
        os.waitpid(between, 0)
        here.sendall(b"!")
        return int.from_bytes(here.recv(8), "big")


def run(request: dict[str, Any]) -> None:
    """Run a program in this process, as `python WORDS` does."""
    words = list(request["words"])
    if request["new_session"]:
        os.setsid()
    os.chdir(request["cwd"])
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = [entry for entry in sys.path[1:] if entry not in before]
    os.environ.clear()
    os.environ.update(request["env"])
    added = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    first = os.getcwd() if words[0] == "-m" else os.path.dirname(os.path.abspath(words[0]))
    sys.path[:] = [first, *added, *rest]
    importlib.invalidate_caches()
    tempfile.tempdir = None  # which the environment may name
    faults: Any = importlib.import_module("millpond.faults")
    faults._faults = faults.from_environment(os.environ)
    sys.orig_argv = [sys.executable, *words]
    match words:
        case ["-m", module, *arguments]:
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case _:
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    run(main(int(sys.argv[1]), sys.argv[2:]))
