"""Records the calls from Python to the JVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from py4j.java_gateway import GatewayClient

_RELEASES = ("m\n", "c\nz:millpond.CatalystTrees\nrelease\n")


@contextmanager
def jvm_calls(*, releases: bool = False) -> Iterator[list[str]]:
    """The commands sent to the JVM meanwhile; those that only release objects if `releases`, else all others."""
    sent: list[str] = []
    send = GatewayClient.send_command

    def counted(self: GatewayClient, command: str, *rest: Any, **more: Any) -> Any:
        if command.startswith(_RELEASES) is releases:
            sent.append(command)
        return send(self, command, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GatewayClient, "send_command", counted)
        yield sent
