"""Makes the other benchmarks' modules importable, for programs that are started from this folder; import it first."""

from __future__ import annotations

import sys
from pathlib import Path

_ABOVE = str(Path(__file__).resolve().parents[1])
if _ABOVE not in sys.path:
    sys.path.insert(1, _ABOVE)
