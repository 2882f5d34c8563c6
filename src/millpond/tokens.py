"""Draws random ids and secrets that never repeat, not even between hosts and restarts."""

from __future__ import annotations

import secrets
import uuid


def writer_token() -> str:
    """Return a new writer's token: 24 hexadecimal digits, 96 random bits.

    It names one run of one driver. Task attempt ids start again at 0 with a new driver, so every file
    name that must be unique to an attempt carries this token as well.
    """
    return secrets.token_hex(12)


def bearer_token() -> str:
    """Return a new secret that grants access to its bearer: 256 random bits, as 43 characters."""
    return secrets.token_urlsafe(32)


def streaming_query_id() -> str:
    """Return a new id of a streaming query, in the form that Spark gives one."""
    return str(uuid.UUID(bytes=secrets.token_bytes(16), version=4))
