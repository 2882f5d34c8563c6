"""The public names of `import millpond`."""

from __future__ import annotations

import millpond


def test_completion_shows_the_public_names() -> None:
    assert dir(millpond) == sorted(millpond.__all__)
    assert {"Pond", "Client", "spark_session"} <= set(dir(millpond))
