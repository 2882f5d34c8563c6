"""The network between one host and a server of a test, as a proxy on a loopback port that can be cut and healed.

While the link is cut, no byte passes and no error is reported: connections stay open, and new ones get no reply.
When it is healed, the bytes that were sent meanwhile arrive, as TCP would send them again.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

_CHUNK = 1 << 16


class NetworkLink:
    """A way to the port `server` of this machine; a context manager that ends every connection."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._whole = threading.Event()
        self._whole.set()
        self._lock = threading.Lock()
        self._ended = False
        self._sockets: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        """Let no byte pass, in either direction."""
        self._whole.clear()

    def heal(self) -> None:
        """Let everything pass again, from where it stopped."""
        self._whole.set()

    def __enter__(self) -> NetworkLink:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._ended = True
            for one in (self._listener, *self._sockets):
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        self._whole.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is shut down
            while True:
                near, _ = self._listener.accept()
                thread = threading.Thread(target=self._connect, args=(near,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _connect(self, near: socket.socket) -> None:
        with near, suppress(OSError), socket.create_connection(("127.0.0.1", self._server)) as far:
            with self._lock:
                if self._ended:
                    return
                self._sockets |= {near, far}
            back = threading.Thread(target=self._carry, args=(far, near), daemon=True)
            back.start()
            self._carry(near, far)
            back.join()
            with self._lock:
                self._sockets -= {near, far}

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(_CHUNK):
                self._whole.wait()
                other.sendall(data)
        with suppress(OSError):
            self._whole.wait()
            other.shutdown(socket.SHUT_WR)
