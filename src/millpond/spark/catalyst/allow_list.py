"""Defines the allow-lists of query text: plan nodes, expressions and functions.

A name is listed if it reads nothing but its arguments, returns the same result for the same arguments, and cannot by
itself make a large value from a small one (`repeat`, `sequence`, `space` and `lpad` are absent for that reason).
`value_bounds` limits the values that several of them make together.
"""

from __future__ import annotations

from millpond.plan.groups.aggregate_functions import SPELLINGS


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PLANS = _words(
    """Project Filter Aggregate UnresolvedHaving SubqueryAlias UnresolvedRelation NamedStreamingRelation
    UnresolvedEventTimeWatermark Join Union UnresolvedWith UnresolvedSubqueryColumnAliases PipeOperator
    Distinct Generate"""
)
"""Logical plan nodes of a parsed query; unsupported joins and unions pass here and are refused by name later."""

EXPRESSIONS = _words(
    """UnresolvedAttribute Literal Alias UnresolvedAlias UnresolvedStar UnresolvedFunction
    SortOrder UnresolvedOrdinal UnresolvedExtractValue SemiStructuredExtract NamedArgumentExpression MultiAlias
    EqualTo EqualNullSafe GreaterThan GreaterThanOrEqual LessThan LessThanOrEqual And Or Not IsNull
    IsNotNull In Like RLike Between LikeAll LikeAny NotLikeAll NotLikeAny ILike Add Subtract Multiply
    Divide IntegralDivide Remainder UnaryMinus UnaryPositive BitwiseAnd BitwiseOr BitwiseXor BitwiseNot
    ShiftLeft ShiftRight Concat Cast CaseWhen If Coalesce AggregateExpression First Last AnyValue
    LambdaFunction UnresolvedNamedLambdaVariable PipeExpression CreateNamedStruct StringTrim
    StringTrimLeft StringTrimRight Substring StringLocate StringTranslate Overlay Extract TryEval UnresolvedGenerator
    WindowExpression WindowSpecDefinition SpecifiedWindowFrame UnspecifiedFrame CurrentRow UnboundedPreceding
    UnboundedFollowing"""
)
"""Expression nodes of a parsed query."""

WINDOWS = frozenset({"window", "session_window", "window_time", "count_window"})
"""Functions that make windows; those that this version does not support are refused by name later."""

AGGREGATES = SPELLINGS | {"product", "try_avg", "try_sum"}
"""Aggregate functions; those that this version does not answer are refused by name later."""

SCALARS = _words(
    """abs acos asin atan atan2 bround cbrt ceil ceiling cos degrees div e exp expm1 floor hypot ln log
    log10 log1p log2 mod negative pi pmod positive pow power radians rint round sign signum sin sqrt tan
    try_add try_divide try_multiply try_subtract width_bucket greatest least coalesce if ifnull isnan
    isnull isnotnull nanvl nullif nullifzero nvl nvl2 zeroifnull between ascii bit_length btrim
    char_length character_length concat concat_ws contains endswith startswith initcap instr lcase
    length left like ilike rlike regexp_like locate lower ltrim md5 octet_length overlay position
    replace reverse right rtrim sha sha1 sha2 soundex split split_part substr substring substring_index
    translate trim ucase upper hash xxhash64 crc32 regexp_extract regexp_replace add_months date_add
    date_diff datediff date_format date_part date_sub date_trunc dateadd day dayofmonth dayofweek
    dayofyear extract from_unixtime hour last_day make_date make_interval make_timestamp minute month
    months_between next_day quarter second timestamp_micros timestamp_millis timestamp_seconds to_date
    to_timestamp trunc try_to_timestamp unix_micros unix_millis unix_seconds weekday weekofyear year
    cast try_cast bigint binary boolean date decimal double float int smallint string timestamp tinyint
    bit_count bit_get shiftleft shiftright named_struct struct element_at try_element_at get
    get_json_object from_json array array_contains array_max array_min size cardinality exists filter
    forall transform aggregate reduce map map_keys map_values"""
)
"""Functions of one row."""

GENERATORS = _words("explode explode_outer posexplode posexplode_outer inline inline_outer")
"""Functions that make a row for each element of an array or map."""

FUNCTIONS = WINDOWS | AGGREGATES | SCALARS | GENERATORS
"""All functions that query text may call, in lower case."""

UNSTABLE = _words(
    """CurrentTimestamp CurrentTimestampLike Now LocalTimestamp CurrentDate CurrentTime CurrentTimeZone
    CurrentUser SessionUser CurrentDatabase CurrentCatalog CurrentPath SparkVersion AesEncrypt
    UnixTimestampNow Uuid Rand Randn RandStr Uniform Shuffle MonotonicallyIncreasingID SparkPartitionID
    InputFileName InputFileBlockStart InputFileBlockLength CallMethodViaReflection Sleep VariableReference"""
)
"""Resolved expressions whose result depends on more than their arguments, even if Spark calls them deterministic."""

MOMENTS = ("timestamp", "timestamp_ntz", "date")
"""Types whose constants Spark may compute from the clock: `TIMESTAMP 'now'`, or a time without a date."""

OPAQUE = frozenset({"PythonUDAF", "PythonUDTF", "ScalaUDF", "ScalaAggregator", "ScalaUDAF", "HiveSimpleUDF"})
"""Resolved expressions that run code which cannot be identified, or whose failure would end the epoch."""
