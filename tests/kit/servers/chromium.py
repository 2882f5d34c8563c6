"""Chromium, as users have it, driven by Playwright."""

from __future__ import annotations

import os
import shutil

VARIABLE = "MILLPOND_CHROMIUM"


def chromium_binary() -> str | None:
    """The path of Chromium: the one that the environment names, or the first of the PATH."""
    named = os.environ.get(VARIABLE)
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
