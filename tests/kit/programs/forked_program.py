"""Python programs of tests that are forked from a process which has already imported what they import.

To import Spark's client, pandas and Millpond costs a program more than a second of a core. A forked program is a
process of its own and a child of the test: it has its own environment, arguments, folder, files and exit status.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

_SUBREAPER = 36
"""`PR_SET_CHILD_SUBREAPER` of `prctl`: orphans among the descendants become children of this process."""

_lock = threading.Lock()
_servers = dict[type["ForkedProgram"], socket.socket]()


class ForkedProgram(subprocess.Popen[Any]):
    """A `Popen` of the Python program `words`: `-m MODULE` or a file, and its arguments.

    On systems other than Linux the program starts in a new interpreter. A subclass has a process of its own from which
    its programs are forked, which imports `modules`, if any are named, in an environment with these variables.
    """

    modules: tuple[str, ...] = ()
    variables: Mapping[str, str] = MappingProxyType({})

    def __init__(self, words: Sequence[object], **how: Any) -> None:
        self._words = [str(word) for word in words]
        if self._words[0] == "-c":
            raise ValueError("A forked program is a module or a file.")
        super().__init__([sys.executable, *self._words], **how)

    if sys.platform == "linux":

        def _execute_child(
            self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any,
            startupinfo: Any, creationflags: Any, shell: Any, p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int,
            errread: int, errwrite: int, restore_signals: Any, gid: Any, gids: Any, uid: Any, umask: Any,
            start_new_session: bool, *newer: Any,
        ) -> None:  # fmt: skip
            """What `Popen` calls to start the process, with its ends of the pipes, or -1 for its own files."""
            if preexec_fn is not None or shell:
                raise ValueError("A forked program takes no preexec_fn or shell.")
            files = [mine if given == -1 else given for mine, given in enumerate((p2cread, c2pwrite, errwrite))]
            request = {
                "words": self._words,
                "env": dict(os.environ if env is None else env),
                "cwd": os.path.abspath(os.getcwd() if cwd is None else cwd),
                "new_session": start_new_session,
                "files": [0, 1, 2, *pass_fds],
            }
            self.pid = _forked(type(self), request, [*files, *pass_fds])
            self._child_created = True
            close: Any = getattr(self, "_close_pipe_fds")  # noqa: B009 - no part of the types
            close(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


def run_forked(
    words: Sequence[object], *, timeout: float | None = None, **how: Any
) -> subprocess.CompletedProcess[Any]:
    """Like `subprocess.run` with captured output, for a forked program."""
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | how
    with ForkedProgram(words, **how) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _forked(kind: type[ForkedProgram], request: dict[str, Any], files: list[int]) -> int:
    """The process id of a new child of this process, which runs the requested program."""
    with _lock:
        if kind not in _servers:
            _servers[kind] = _start(kind)
        body = json.dumps(request).encode()
        with _adopting():
            socket.send_fds(_servers[kind], [len(body).to_bytes(8, "big")], files)
            _servers[kind].sendall(body)
            answer = _servers[kind].recv(8)
    if len(answer) != 8:
        raise ChildProcessError("The process that forks programs has ended.")
    return int.from_bytes(answer, "big")


def _start(kind: type[ForkedProgram]) -> socket.socket:
    mine, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "kit.programs.fork_program", str(theirs.fileno()), *kind.modules]
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env={**os.environ, **kind.variables}
        )  # fmt: skip
    return mine


@contextmanager
def _adopting() -> Iterator[None]:
    """Within, descendants whose parent ends become children of this process."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
    try:
        yield
    finally:
        prctl(_SUBREAPER, 0, 0, 0, 0)


