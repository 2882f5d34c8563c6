"""The list of dead letters as plain fields, which a service sends and a client reads without Arrow."""

from __future__ import annotations

import msgspec


class Sending(msgspec.Struct, frozen=True):
    """A replay that has sent dead letters: when, for whom, and to which other topic, if not to their own one.

    `recorded`: false if the replay ended before it could record itself; `at_us` is when a later replay found that.
    """

    at_us: int
    who: str
    topic: str | None = None
    recorded: bool = True


class LetterKind(msgspec.Struct, frozen=True):
    """The dead letters of one topic and reason that the same replays have sent, or none.

    `first_us`, `last_us`: the times of their records in Kafka, in microseconds since 1970 UTC; None: they have none.
    """

    topic: str
    reason: str
    letters: int
    first_us: int | None
    last_us: int | None
    sent: tuple[Sending, ...] = ()
