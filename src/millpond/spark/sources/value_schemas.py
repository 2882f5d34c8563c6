"""Finds the schemas of Kafka values: in files, or in the registry by the number at the beginning of a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millpond.errors import MillpondError, SetupError, UnknownSchemaError
from millpond.formats.schema_registry import Registered, schemas_of
from millpond.local_path import local_path
from millpond.model.stream import Stream

VALUE = "value"
"""The column of a record with the value that is parsed."""

NUMBER = "__number"
"""The column with the number of a value's schema; NULL if the value does not begin with a number."""

NOT_THERE = "is not in the registry"
NO_NUMBER = "the value does not begin with the number of a schema"


def numbered(options: Mapping[str, str]) -> bool:
    """Whether values begin with the number of their schema in a registry."""
    return options.get("registry", "false" if "schema" in options else "true").lower() == "true"


def schema_text(stream: Stream, path: str) -> str:
    """The text of a schema file.

    Raises:
        SetupError: it cannot be read.
    """
    try:
        return local_path(path, f"The schema of {stream.name}").read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"The schema {path} of {stream.name} cannot be read: {error}.", "Mend its path.") from error


def registered(options: Mapping[str, str]) -> tuple[dict[int, Registered | None], bool]:
    """The known schemas in the registry of a stream's connection, and whether unknown numbers should be requested.

    The schemas of the stream's topics are requested first.

    Raises:
        SetupError: the connection does not exist, or it has no registry.
        SourceError: the registry does not respond.
    """
    schemas = schemas_of(options.get("connection"))
    schemas.learn_subjects(f"{topic.strip()}-value" for topic in options.get("subscribe", "").split(",") if topic)
    return schemas.known(), schemas.requests_unknown


def fetch_missing_schema(streams: Iterable[Stream], error: MillpondError) -> MillpondError | None:
    """Request the schema whose absence an error reports from the registry of the stream's connection.

    Returns None if the schema is known now, so that the read can be repeated, and otherwise the error to end with.
    """
    if not isinstance(error, UnknownSchemaError):
        return error
    name, number = error.schema_id
    source = next(stream.source for stream in streams if stream.name == name)
    assert source is not None
    try:
        schemas_of(dict(source.options).get("connection")).learn(number)
    except MillpondError as failure:
        return failure
    return None


def with_number(records: DataFrame) -> DataFrame:
    """Records with the column `NUMBER`."""
    value = F.col(VALUE)
    number = F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).cast("bigint")
    named = (F.length(value) >= 5) & (F.hex(F.substring(value, 1, 1)) == "00")
    return records.select("*", F.when(named, number).alias(NUMBER))


def body() -> Column:
    """The part of a value after its schema number, which the schema describes."""
    return F.substring(F.col(VALUE), 6, 2147483647)
