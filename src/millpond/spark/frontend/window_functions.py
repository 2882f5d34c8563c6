"""Defines the window functions of the public API for DataFrames: `window`, `count_window` and `cumulate_window`.

Each returns a tumbling window of Spark, in whose time the values of the real window are hidden. `analysis.windows`
reads them from the analysed plan.
"""

from __future__ import annotations

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from millpond.errors import SetupError
from millpond.model.windows import Counted, Cumulating, Sliding
from millpond.spark.analysis.windows import check_counts, check_overlap, check_steps, duration_us
from millpond.spark.catalyst.private_names import Catalyst


def window(time: Column | str, size: str, slide: str | None = None, start: str | None = None) -> Column:
    """Spark's `functions.window` for the DataFrame of a pond's query, for any number of windows per event.

    Spark's function plans size / slide rows for each event while a DataFrame is built, so a long window that slides
    often exhausts the driver. This function does not. A DataFrame with it raises if Spark itself runs it.

    Raises:
        QueryTypeError: a duration is not an interval, counts months, or makes no valid window.
        SetupError: there is no active session.
    """
    catalyst = _active()
    size_us = duration_us(catalyst, size, repr(size))
    slide_us = size_us if slide is None else duration_us(catalyst, slide, repr(slide))
    offset_us = 0 if start is None else duration_us(catalyst, start, repr(start))
    made = Sliding(size_us, slide_us, offset_us % max(slide_us, 1))
    check_overlap(made)
    what = f"window(size {made.size_us}, slide {made.slide_us}, offset {made.offset_us}) in microseconds"
    return _annotated_window(time, what, f"{size_us} microseconds")


def count_window(time: Column | str, size: int, every: int | None = None) -> Column:
    """A window of the last `size` events of a key in the order of `time`, for the DataFrame of a pond's query.

    A row is emitted with every `every`-th event of the key; the default is `size`. An example is
    `frame.groupBy("card", count_window("ts", 10, 1)).agg(…)`. SQL has a function of the same name. A DataFrame with
    this window raises if Spark itself runs it.

    Raises:
        QueryTypeError: the numbers make no valid window.
    """
    made = Counted(size, size if every is None else every)
    check_counts(made)
    return _annotated_window(time, f"count_window(size {made.size}, every {made.every})")


def cumulate_window(time: Column | str, size: str, step: str) -> Column:
    """Windows that grow by `step` up to `size`, as Flink's CUMULATE, for the DataFrame of a pond's query.

    SQL has a function of the same name. A DataFrame with this window raises if Spark itself runs it.

    Raises:
        QueryTypeError: a duration is not an interval, counts months, or the size is no multiple of the step.
        SetupError: there is no active session.
    """
    catalyst = _active()
    made = Cumulating(duration_us(catalyst, size, repr(size)), duration_us(catalyst, step, repr(step)))
    check_steps(made)
    return _annotated_window(time, f"cumulate_window(size {made.size_us}, step {made.step_us}) in microseconds")


def _active() -> Catalyst:
    spark = SparkSession.getActiveSession()
    if spark is None:
        raise SetupError("There is no active Spark session.", "Start one, or call spark_session().")
    return Catalyst(spark)


def _annotated_window(time: Column | str, what: str, length: str = "1 day") -> Column:
    """A window of Spark whose time carries a note of the window that is meant, and raises if Spark runs it."""
    note = F.raise_error(F.lit(f"only a pond answers {what}"))
    return F.window(F.when(note.isNull(), time if isinstance(time, Column) else F.col(time)), length)
