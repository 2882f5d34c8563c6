"""Signs sessions and one-time codes of the web console with the token of the pond.

A session is what a browser keeps in a cookie instead of the token. It says until when it is valid, and its signature
can be made only with the token. So each process with the same token accepts it, and a page that was open continues
after a restart or at the next leader. A code is accepted once, and only for a minute: `millpond open` makes one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Literal

from millpond.clock import Clock, now_us

Kind = Literal["session", "code"]

SECONDS: dict[Kind, int] = {"session": 8 * 3600, "code": 60}
"""How long each kind is valid."""

_FORM = re.compile(r"(\d{1,16})\.([\w-]{22})\.([0-9a-f]{64})", re.ASCII)


class Sessions:
    """The sessions and codes of one pond, as seen by one process. Thread-safe."""

    def __init__(self, token: str, clock: Clock = now_us) -> None:
        self._key = hmac.digest(token.encode(), b"millpond console", "sha256")
        self._clock = clock
        self._ended: dict[str, int] = {}
        self.cookie = f"millpond-{hashlib.sha256(self._key).hexdigest()[:8]}"
        """The name of the cookie. Ports of a host share cookies, so ponds have different names."""

    def issue(self, kind: Kind) -> str:
        """A new session or code."""
        claim = f"{self._clock() // 1_000_000 + SECONDS[kind]}.{secrets.token_urlsafe(16)}"
        return f"{claim}.{self._signature(kind, claim)}"

    def accepts(self, kind: Kind, text: str) -> bool:
        """Whether this is a session or code that is still valid."""
        found = _FORM.fullmatch(text)
        if found is None:
            return False
        signed = hmac.compare_digest(found[3], self._signature(kind, f"{found[1]}.{found[2]}"))
        return signed and self._clock() < int(found[1]) * 1_000_000 and text not in self._ended

    def end(self, kind: Kind, text: str) -> bool:
        """Accept a session or code for the last time in this process; returns whether it was valid."""
        accepted = self.accepts(kind, text)
        if accepted:
            now = self._clock() // 1_000_000
            self._ended = {one: until for one, until in self._ended.items() if until > now}
            self._ended[text] = int(text.partition(".")[0])
        return accepted

    def in_cookies(self, header: str) -> str:
        """The session in a header `Cookie`, or an empty text.

        >>> sessions = Sessions("a-token-of-some-length")
        >>> sessions.in_cookies(f"a=b; {sessions.cookie}=c")
        'c'
        """
        pairs = (pair.strip().partition("=") for pair in header.split(";"))
        return next((value for name, _, value in pairs if name == self.cookie), "")

    def _signature(self, kind: Kind, claim: str) -> str:
        return hmac.digest(self._key, f"{kind}.{claim}".encode(), "sha256").hex()
