"""Names of served queries that were dropped are free when the view has followed the drop."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.control.wiring.attach_sinks import Joining
from millpond.errors import ChangeRefused
from millpond.model.change_history import Asked, Leaving
from millpond.model.endpoints import Sink
from millpond.model.query import Query
from millpond.model.windows import Sliding


class Following:
    """Stands for the runners: a view that is at a record."""

    at = 4

    def cursors(self) -> dict[str, int]:
        return {"view": self.at}


def test_a_name_that_was_served_before_a_restart_waits_for_the_view(tmp_path: Path) -> None:
    following = Following()
    joining = Joining(following, None, "p", tmp_path, None, None, {}, {})  # type: ignore[arg-type]
    asked = Query("spend", "s", "ts", 0, Sliding(1, 1), (), (), (), serve=True, sink=Sink("noop"))
    joining.add_last(Leaving(Asked.of(asked), 5))
    with pytest.raises(ChangeRefused, match="spend that was dropped are still served"):
        joining.check(asked, stored=True)
    with pytest.raises(ChangeRefused, match="no store yet"):
        joining.check(asked, stored=False)
    following.at = 5
    joining.check(asked, stored=True)
