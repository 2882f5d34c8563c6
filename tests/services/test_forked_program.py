"""A forked program of the test kit behaves as one that a new interpreter runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kit.programs.forked_program import ForkedProgram, run_forked

PROGRAM = """
import os, sys, tempfile
print(sys.argv[1:], sys.orig_argv, sys.path[:3], os.getcwd(), os.environ["COLOUR"], tempfile.gettempdir(), __name__)
print(os.getppid(), os.getsid(0) == os.getpid(), sys.modules["__main__"].__name__, sys.stdin.read())
print("to the other file", file=sys.stderr)
sys.exit(7)
"""


@pytest.mark.parametrize("way", ["-m", "file"])
@pytest.mark.parametrize("session", [True, False])
def test_it_sees_what_a_new_interpreter_sees(way: str, session: bool, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "the_program.py").write_text(PROGRAM)
    file = str(tmp_path / "sub" / "the_program.py")
    words = ["-m", "the_program"] if way == "-m" else [file]
    path = os.pathsep.join([str(tmp_path / "sub"), os.environ["PYTHONPATH"]])
    env = os.environ | {"COLOUR": "blue", "TMPDIR": str(tmp_path), "PYTHONPATH": path}
    how = {"env": env, "cwd": tmp_path, "start_new_session": session, "text": True}
    with (tmp_path / "text").open("w+") as text:
        text.write("some text")
        found = []
        for run in (
            lambda: subprocess.run([sys.executable, *words, "a", "b"], capture_output=True, stdin=text, **how),  # type: ignore[call-overload]
            lambda: run_forked([*words, "a", "b"], stdin=text, **how),
        ):
            text.seek(0)
            done = run()
            found.append((done.args, done.returncode, done.stdout, done.stderr))
    for ours, theirs in zip(*found, strict=True):
        assert ours == theirs
    assert found[0][1] == 7 and "some text" in found[0][2]


def program(folder: Path, text: str) -> list[str]:
    (folder / "program.py").write_text(text)
    return [str(folder / "program.py")]


def test_it_is_a_child_that_can_be_killed_and_identified(tmp_path: Path) -> None:
    words = program(tmp_path, "import time; print('up', flush=True); time.sleep(600)")
    with ForkedProgram(words, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None and one.stdout.readline() == b"up\n"
        assert one.poll() is None
        one.send_signal(signal.SIGKILL)
        assert one.wait(60) == -signal.SIGKILL
    with pytest.raises(subprocess.TimeoutExpired):
        run_forked(words, timeout=0.1)


def test_ctrl_c_reaches_it(tmp_path: Path) -> None:
    # one long sleep would miss a signal that arrives just before it begins
    text = """
import time
try:
    print('up', flush=True)
    while True: time.sleep(0.05)
except KeyboardInterrupt: print('stops')"""
    with ForkedProgram(program(tmp_path, text), stdout=subprocess.PIPE) as one:
        assert one.stdout is not None and one.stdout.readline() == b"up\n"
        one.send_signal(signal.SIGINT)
        assert one.communicate()[0] == b"stops\n"


def test_unsupported_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="preexec_fn"):
        ForkedProgram(program(tmp_path, ""), preexec_fn=os.setsid)
    with pytest.raises(ValueError, match="a module or a file"):
        ForkedProgram(["-c", ""])


def test_it_inherits_open_files(tmp_path: Path) -> None:
    words = program(tmp_path, "import os, sys; print([os.read(int(word), 9) for word in sys.argv[1:]])")
    with (tmp_path / "a").open("w+b") as a, (tmp_path / "b").open("w+b") as b:
        for file in (a, b):
            file.write(file.name[-1].encode())
            file.seek(0)
        numbers = [a.fileno(), b.fileno()]
        assert run_forked([*words, *numbers], pass_fds=numbers).stdout == b"[b'a', b'b']\n"
