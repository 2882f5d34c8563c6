"""Skips tests whose servers are missing, except where they are required, as in CI."""

from __future__ import annotations

import os

import pytest


def skip_without(service: str, why: str | None) -> None:
    """Skip the test if there is a reason `why` the service is missing; an error where MILLPOND_REQUIRE names it."""
    if why is not None:
        assert service not in os.environ.get("MILLPOND_REQUIRE", "").split(","), why
        pytest.skip(why)
