"""Checks query text at the gate as the front end does, without a front end."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from millpond.spark.catalyst.private_names import Catalyst
from millpond.spark.frontend.gate import check_size, judge, parse
from millpond.spark.session.session import Session


def gate(spark: Session, text: str, relations: Collection[str]) -> Any:
    """Spark's unresolved plan of a text that may read `relations`; raises what the front end would raise."""
    check_size(text)
    plan = parse(Catalyst(spark), text)
    judge(plan, relations)
    return plan
