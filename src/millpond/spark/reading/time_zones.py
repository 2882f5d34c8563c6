"""Analyses texts in other time zones than that of the session: `SET TIME ZONE`, and the property `time.zone`.

Spark reads the time zone of the session when it parses a text and resolves its expressions, which then keep it. So a
text is analysed in a session of its zone. It sees the relations and functions of the front end's own session.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from zoneinfo import available_timezones

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millpond.errors import QueryRefused, QueryTypeError
from millpond.spark.catalyst.private_names import Catalyst, JavaObject, Temporary, analysed, optional

ZONE = "spark.sql.session.timeZone"
_ANSI = "spark.sql.ansi.enabled"
_LOCAL = re.compile(r"\bLOCAL\s*$", re.IGNORECASE)
_QUOTED_KEY = re.compile(r"\s*SET\s+'(?P<key>[^']+)'", re.IGNORECASE)
_FORM = "Write SET TIME ZONE 'Europe/Berlin'."


class ZonedSessions:
    """A session for each time zone in which texts are analysed, beside the front end's `own` session."""

    def __init__(self, own: Catalyst) -> None:
        self._own = own
        self._sessions: dict[str, Catalyst] = {}

    def of(self, zone: str | None, relations: Collection[str] = (), functions: Sequence[str] = ()) -> Catalyst:
        """The session of a zone, with these temporary views and functions of the own session; None: the own session."""
        if zone is None:
            return self._own
        known = self._sessions.get(zone)
        if known is None:
            session = self._own.clone()
            session.conf.set(ZONE, checked_zone(session, zone))
            known = self._sessions[zone] = Catalyst(session)
        known.adopt(self._own, Temporary(tuple(relations), tuple(functions)))
        return known

    def sql(self, zone: str | None, text: str, relations: Collection[str]) -> DataFrame:
        """The frame of a SELECT that names these relations, in the session of a zone."""
        return self.of(zone, relations).spark.sql(text)

    def show(self, zone: str | None, view: str) -> None:
        """Let texts of all zones name a temporary view that was made in the session of `zone`."""
        if zone is not None:
            self._own.adopt(self._sessions[zone], Temporary((view,), ()))


def checked_zone(spark: SparkSession, zone: str) -> str:
    """The zone, if Spark knows it.

    Raises:
        QueryTypeError: it does not.
    """
    session = Catalyst(spark).clone()
    try:
        session.conf.set(ZONE, zone)
    except (PySparkException, ValueError) as error:
        near = get_close_matches(zone, available_timezones(), 2, 0.6)
        cure = f"Did you mean: {' or '.join(near)}?" if near else "Write a name such as Europe/Berlin, or +02:00."
        raise QueryTypeError(f"{zone!r} is not a time zone.", cure) from error
    return zone


def zone_set_by(catalyst: Catalyst, plan: JavaObject, text: str) -> str | None:
    """The time zone that a parsed SET gives to the statements after it; None: it sets what is in force anyway.

    Raises:
        QueryRefused: it sets something else.
        QueryTypeError: Spark does not know the zone.
    """
    found = optional(plan.kv())
    value = None if found is None else optional(found._2())
    if found is None or value is None:
        raise QueryRefused("A pond file may not have SET without a value.", "Leave it out: nothing would show it.")
    key = str(found._1())
    if key.lower() == ZONE.lower():
        if _LOCAL.search(text):
            raise QueryRefused("SET TIME ZONE LOCAL depends on the host that runs the pond.", _FORM)
        return checked_zone(catalyst.spark, str(value))
    if key.lower() == _ANSI and str(value).lower() == "true":
        return None
    raise QueryRefused(f"A pond file may not have SET {key}.", _cure(key))


def refuse_quoted_key(text: str) -> None:
    """Refuse `SET 'key' = 'value'`, which Flink has and Spark cannot parse.

    Raises:
        QueryRefused: the text is of this form.
    """
    found = _QUOTED_KEY.match(text)
    if found is not None:
        raise QueryRefused(f"A pond file may not have SET '{found['key']}'.", _cure(found["key"]))


def _cure(key: str) -> str:
    if "zone" in key.lower():
        return _FORM
    if key.lower() == _ANSI:
        return "Leave it out: a pond computes under ANSI rules. try_cast, try_add and try_divide give NULL instead."
    if "partitions" in key.lower() or "parallelism" in key.lower():
        return "Leave it out: `millpond run --instances N` says how many instances compute in parallel."
    if "checkpoint" in key.lower() or "state" in key.lower():
        return "Leave it out: `--checkpoint` and `--store` say where a pond keeps its log and its state."
    return "Leave it out: other settings belong to the Spark session that runs the pond (spark-defaults.conf)."


def in_zone(frame: DataFrame, zone: str | None) -> DataFrame:
    """The frame in a session of its own with another time zone; None: the frame itself."""
    if zone is None:
        return frame
    session = Catalyst(frame.sparkSession).clone()
    session.conf.set(ZONE, zone)
    return Catalyst(session).frame(analysed(frame))
