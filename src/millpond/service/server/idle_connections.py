"""Closes connections that send no request within a time limit; Uvicorn alone would wait without limit."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

HEAD_SECONDS = 10.0
"""A connection without a request at hand has so long for the head of the next one, and is closed within twice that."""


class Hasty(H11Protocol):
    """Uvicorn's protocol, in a hurry."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection is there."""
        super().connection_made(transport)
        self.loop.call_later(HEAD_SECONDS, self._look, None)

    def _look(self, before: RequestResponseCycle | None) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is before and (before is None or before.response_complete):
            self.transport.close()
        else:
            self.loop.call_later(HEAD_SECONDS, self._look, self.cycle)
