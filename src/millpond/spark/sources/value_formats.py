"""Parses Kafka values of each format into columns, and finds out why a record is malformed.

Spark parses JSON, CSV and Avro; `formats.protobuf` parses Protobuf in Spark's workers. A value that does not fit its
column makes its record malformed, or is NULL if the stream is permissive.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from millpond.errors import QueryRefused, QueryTypeError, UnsupportedQuery
from millpond.formats.malformed_reasons import (
    NO_FIT,
    NO_OBJECT,
    NO_VALUE,
    field_count_reason,
    misfit_reason,
)
from millpond.model.stream import Field, Stream
from millpond.spark.catalyst.data_types import schema_of
from millpond.spark.sources.avro import parse_avro
from millpond.spark.sources.convert_values import Parsed, is_strict, padded
from millpond.spark.sources.protobuf import parse_protobuf
from millpond.spark.sources.value_schemas import (
    NO_NUMBER,
    NUMBER,
    VALUE,
    body,
    numbered,
    with_number,
)

_JSON = (
    "dateFormat timestampFormat locale timeZone allowComments allowUnquotedFieldNames allowSingleQuotes "
    "allowNumericLeadingZeros allowBackslashEscapingAnyCharacter allowUnquotedControlChars allowNonNumericNumbers "
    "primitivesAsString"
)
_CSV = (
    "dateFormat timestampFormat locale timeZone sep delimiter quote escape comment ignoreLeadingWhiteSpace "
    "ignoreTrailingWhiteSpace nullValue nanValue positiveInf negativeInf maxColumns maxCharsPerColumn emptyValue "
    "charToEscapeQuoteEscaping unescapedQuoteHandling"
)
_OURS = {
    "json": "mode registry",
    "csv": "mode",
    "raw": "",
    "avro": "mode schema registry",
    "protobuf": "mode schema message registry",
}
_PARSERS = {"json": _JSON, "csv": _CSV}
FORMATS = tuple(_OURS)
"""The formats of values; with `raw`, the value is the only declared column, a STRING or BINARY."""

OPTIONS = " ".join(dict.fromkeys(" ".join([*_OURS.values(), *_PARSERS.values()]).split()))
"""Options of all formats."""

_CORRUPT = "__corrupt"
_PARSED = "__parsed"


def options_of(form: str) -> list[str]:
    """The options that values of a format may have."""
    return f"{_OURS[form]} {_PARSERS.get(form, '')}".split()


def check_format(name: str, options: Mapping[str, str], columns: tuple[Field, ...]) -> None:
    """Refuse an unknown format, and options and columns that do not fit it; `columns` are the declared ones.

    Raises:
        UnsupportedQuery: the format does not exist.
        QueryTypeError: a column or an option does not fit.
        QueryRefused: a column has a default, which this format does not support.
    """
    form = options.get("format", "").lower()
    if form not in FORMATS:
        what = f"the format {form}" if form else "no format"
        raise UnsupportedQuery(f"The stream {name} has {what}.", f"Use one of {', '.join(FORMATS)}.")
    for option in options:
        if option in OPTIONS.split() and option not in options_of(form):
            raise QueryTypeError(f"`{option}` is not an option of {form} values.", "Leave it out.")
    if not columns:
        raise QueryTypeError(f"The stream {name} declares no columns.", "List them: CREATE TABLE name (a INT, …).")
    defaults = [field.name for field in columns if not isinstance(field.default, msgspec.UnsetType)]
    if defaults and form != "json":
        raise QueryRefused(
            f"The column {defaults[0]} of {name} has a DEFAULT, which {form} values do not take.",
            "Leave it out, and write coalesce(column, value) in the queries.",
        )
    if form == "raw" and (len(columns) != 1 or columns[0].type not in ("string", "binary")):
        raise QueryTypeError(
            f"The stream {name} takes raw values, which are one column.", "Declare one, STRING or BINARY."
        )
    for option, known in (("mode", ("strict", "permissive")), ("registry", ("true", "false"))):
        if options.get(option, known[0]).lower() not in known:
            words = " or ".join(map(repr, known))
            raise QueryTypeError(f"`{option}` of {name} is {options[option]!r}.", f"Write {words}.")
    if form in ("avro", "protobuf") and not numbered(options) and "schema" not in options:
        raise QueryTypeError(f"{name} has no schema.", "Add OPTIONS (schema 'FILE'), or use a registry.")
    if form == "protobuf" and "schema" in options:
        if options.get("registry", "false").lower() == "true":
            raise QueryTypeError(f"The stream {name} has two schemas, a file's and a registry's.", "Leave one out.")
        if "message" not in options:
            raise QueryTypeError(f"The message of {name} is not named.", "Add OPTIONS (message 'a.B').")


def parsed(records: DataFrame, stream: Stream, fields: tuple[Field, ...], options: Mapping[str, str]) -> Parsed:
    """Parse the values of records into the columns that a stream declares.

    Raises:
        SetupError: a schema or its parser is not available.
        SourceError: the schema registry does not respond.
    """
    form, value = options["format"].lower(), F.col(VALUE)
    empty = F.when(value.isNull(), F.lit(NO_VALUE))
    declared = schema_of(fields)
    if form == "raw":
        made = Parsed(records, [value.cast(declared[0].dataType).alias(fields[0].name)], empty)
    elif form == "avro":
        made = parse_avro(records, stream, declared, options, empty)
    elif form == "protobuf":
        made = parse_protobuf(records, stream, declared, options, empty)
    else:
        made = _of_text(records, declared, options, empty)
    columns = zip(made.columns, fields, strict=True)
    return made._replace(columns=[padded(column, field.char).alias(field.name) for column, field in columns])


def _of_text(records: DataFrame, declared: StructType, options: Mapping[str, str], empty: Column) -> Parsed:
    form = options["format"].lower()
    schema = StructType([*declared.fields, StructField(_CORRUPT, StringType())])
    ours = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    given = {option: options[option] for option in _PARSERS[form].split() if option in options} | ours
    named = form == "json" and options.get("registry", "false").lower() == "true"
    text = (body() if named else F.col(VALUE)).cast("string")
    made = _from(form, text, schema, given)
    inside = F.col(_PARSED)
    columns = [inside[field.name].alias(field.name) for field in declared.fields]
    broken = inside.isNull() | inside[_CORRUPT].isNotNull()
    if not is_strict(options):
        # Spark returns the text of a record of which only some parts fit; a record of which nothing fits is malformed.
        for field in declared.fields:
            broken &= inside[field.name].isNull()
    if named:
        records = with_number(records)
        empty = empty.when(F.col(NUMBER).isNull(), F.lit(NO_NUMBER))
    reason = empty.when(broken, _why_malformed(form, text, declared, given))
    return Parsed(records.select("*", made.alias(_PARSED)), columns, reason)


def _why_malformed(form: str, text: Column, declared: StructType, given: Mapping[str, str]) -> Column:
    """The reason why a text is malformed: its form, or the first column that is NULL although the text has a value.

    Parsed into columns of strings, a text is malformed only by its form.
    """
    strings = StructType([StructField(name, StringType()) for name in (*declared.names, _CORRUPT)])
    texts = _from(form, text, strings, given)
    by_form = NO_OBJECT if form == "json" else field_count_reason(len(declared))
    misfits = (
        F.when(texts[field.name].isNotNull() & F.col(_PARSED)[field.name].isNull(),
               F.lit(misfit_reason(field.name, field.dataType.simpleString())))
        for field in declared.fields
    )  # fmt: skip
    return F.coalesce(F.when(texts.isNull() | texts[_CORRUPT].isNotNull(), F.lit(by_form)), *misfits, F.lit(NO_FIT))


def _from(form: str, text: Column, schema: StructType, given: Mapping[str, str]) -> Column:
    """A text parsed into the columns of a schema."""
    return F.from_json(text, schema, dict(given)) if form == "json" else F.from_csv(text, schema.toDDL(), dict(given))
