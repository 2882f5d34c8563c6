"""Closes connections that send no request within a time limit; Uvicorn alone would wait without limit."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

HEAD_SECONDS = 10.0
"""Seconds that an idle connection has to send the head of its next request; it is closed within twice that time."""


class Hasty(H11Protocol):
    """Uvicorn's HTTP protocol with the idle timeout."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of a new connection."""
        super().connection_made(transport)
        self.loop.call_later(HEAD_SECONDS, self._look, None)

    def _look(self, before: RequestResponseCycle | None) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is before and (before is None or before.response_complete):
            self.transport.close()
        else:
            self.loop.call_later(HEAD_SECONDS, self._look, self.cycle)
