"""Forwards the frames of network hosts, each after a delay, and loses some, for kernels without `netem`.

`python -m kit.programs.delay_program SECONDS LOSS NAME…`: makes two virtual devices for each name, `NAME` and `NAME-`,
prints a line, and forwards what is sent to one of them to the other, until its input ends. Only the frames that `NAME-`
sends, which is the device inside the host, are delayed. Of the frames in both directions it loses the part LOSS, at
random. At its end it prints how many frames it has forwarded and lost. The devices end with the program.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
from collections import deque
from contextlib import suppress
from random import Random
from time import monotonic

_TUNSETIFF, _TAP, _NO_HEADER = 0x400454CA, 0x0002, 0x1000
_FRAME = 65_536


def device(name: str) -> int:
    """A new virtual Ethernet device; the file descriptor has its frames."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP | _NO_HEADER))
    return file


def forward(delay: float, loss: float, outside: list[int], inside: list[int]) -> tuple[int, int]:
    """Forward frames between the devices of each host until the input ends; the numbers of forwarded and lost ones."""
    random, forwarded, lost = Random(7), 0, 0
    other = dict(zip([*outside, *inside], [*inside, *outside], strict=True))
    delayed = frozenset(inside)
    waiting = deque[tuple[float, int, bytes]]()  # all have the same delay, so the first one is due first
    while True:
        rest = max(0.0, waiting[0][0] - monotonic()) if waiting else None
        ready = select.select([0, *other], [], [], rest)[0]
        if 0 in ready:
            return forwarded, lost
        for file in ready:
            with suppress(BlockingIOError):
                for _ in range(64):
                    frame = os.read(file, _FRAME)
                    if random.random() < loss:
                        lost += 1
                        continue
                    forwarded += 1
                    if file in delayed:
                        waiting.append((monotonic() + delay, other[file], frame))
                    else:
                        _send(other[file], frame)
        now = monotonic()
        while waiting and waiting[0][0] <= now:
            _send(*waiting.popleft()[1:])


def _send(file: int, frame: bytes) -> None:
    """Send a frame, which is lost if the device is down or full, as in any network."""
    with suppress(OSError):
        os.write(file, frame)


def main() -> None:
    """Make the devices and forward."""
    seconds, loss, *names = sys.argv[1:]
    outside, inside = [device(name) for name in names], [device(f"{name}-") for name in names]
    with suppress(PermissionError):  # a busy machine would make the delay longer
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    print("ready", flush=True)
    print(*forward(float(seconds), float(loss), outside, inside))


if __name__ == "__main__":
    main()
