"""Defines the allow-lists of query text: plan nodes, expressions and functions.

Every function of Spark's registry is in one of these lists or in `REFUSED`, with a reason; a test compares them with
the registry. A function may be called if it reads nothing but its arguments and returns the same result for the same
arguments. `value_bounds` limits the values that functions make, and `spark_expressions` refuses arguments with which
an allowed function would do more.
"""

from __future__ import annotations

from millpond.model.aggregates import ORDERED, RUNNING_TOTAL
from millpond.plan.groups.aggregate_functions import SPELLINGS


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


PLANS = words(
    """Project Filter Aggregate UnresolvedHaving SubqueryAlias UnresolvedRelation NamedStreamingRelation
    UnresolvedEventTimeWatermark Join Union UnresolvedWith UnresolvedSubqueryColumnAliases PipeOperator
    Distinct Pivot Unpivot Generate UnresolvedQualify GlobalLimit LocalLimit Sort Intersect Except
    WithWindowDefinition LateralJoin UnresolvedTVFAliases UnresolvedTableValuedFunction
    UnresolvedInlineTable UnresolvedHint"""
)
"""Logical plan nodes of a parsed query; unsupported joins and unions pass here and are refused by name later."""

HINTS = words("broadcast broadcastjoin mapjoin merge mergejoin shuffle_hash shuffle_merge")
"""Hints that a query may have, about joins with tables; they change no row."""

PARTITIONINGS = words("Repartition RepartitionByExpression RebalancePartitions")
"""Logical plan nodes that only say how rows are divided among tasks."""

EXPRESSIONS = words(
    """UnresolvedAttribute Literal Alias UnresolvedAlias UnresolvedStar UnresolvedFunction
    SortOrder UnresolvedOrdinal UnresolvedExtractValue SemiStructuredExtract NamedArgumentExpression MultiAlias
    EqualTo EqualNullSafe GreaterThan GreaterThanOrEqual LessThan LessThanOrEqual And Or Not IsNull
    IsNotNull In Like RLike Between LikeAll LikeAny NotLikeAll NotLikeAny ILike Add Subtract Multiply
    Divide IntegralDivide Remainder UnaryMinus UnaryPositive BitwiseAnd BitwiseOr BitwiseXor BitwiseNot
    ShiftLeft ShiftRight ShiftRightUnsigned TimestampAdd TimestampDiff Concat Cast CaseWhen If Coalesce
    AggregateExpression First Last AnyValue
    LambdaFunction UnresolvedNamedLambdaVariable PipeExpression CreateNamedStruct StringTrim
    StringTrimLeft StringTrimRight Substring StringLocate StringTranslate Overlay Extract TryEval UnresolvedGenerator
    WindowExpression WindowSpecDefinition SpecifiedWindowFrame UnspecifiedFrame CurrentRow UnboundedPreceding
    UnboundedFollowing Rollup Cube GroupingSets InSubquery UnresolvedWindowExpression
    UnresolvedStarExceptOrReplace Collate UnresolvedCollation"""
)
"""Expression nodes of a parsed query."""

COLLATIONS = ("UTF8_BINARY", "UTF8_LCASE", "UNICODE", "UNICODE_CI", "UNICODE_AI", "UNICODE_CI_AI")
"""The collations that COLLATE may name."""

SUBQUERIES = words("Exists ListQuery ScalarSubquery LateralSubquery")
"""The same, with a plan in them."""

WINDOWS = frozenset({"window", "session_window", "window_time", "count_window", "cumulate_window"})
"""Functions that make windows; those that this version does not support are refused by name later."""

AGGREGATES = SPELLINGS | {"grouping", "grouping_id"}
"""Aggregate functions; those that this version does not answer are refused by name later."""

SCALARS = words(
    """abs acos acosh add_months aes_decrypt aggregate and array array_append array_compact array_contains
    array_distinct array_except array_insert array_intersect array_join array_max array_min array_position
    array_prepend array_remove array_repeat array_size array_sort array_union arrays_overlap arrays_zip ascii
    asin asinh assert_true atan atan2 atanh base64 between bigint bin binary bit_count bit_get bit_length
    bitmap_bit_position bitmap_bucket_number bitmap_count boolean bround btrim cardinality cast cbrt ceil
    ceiling char char_length character_length chr coalesce collate collation concat concat_ws contains conv
    convert_timezone cos cosh cot crc32 csc curdate current_date current_timestamp
    date date_add date_diff date_format date_from_unix_date date_part
    date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear decimal decode
    degrees div double e element_at elt encode endswith equal_null exists exp expm1 extract factorial filter
    find_in_set flatten float floor forall format_number format_string from_base32 from_csv from_json
    from_unixtime from_utc_timestamp from_xml get get_json_object getbit greatest hash hex hmac hour hypot if
    ifnull ilike in initcap instr int is_valid_utf8 is_valid_variant is_variant_null isnan isnotnull isnull
    jaro_winkler_similarity json_array_length json_object_keys last_day lcase least left len length levenshtein
    like ln locate log log10 log1p log2 lower lpad ltrim luhn_check make_date make_dt_interval make_interval
    make_time make_timestamp make_timestamp_ltz make_timestamp_ntz make_valid_utf8 make_ym_interval map
    map_concat map_contains_key map_entries map_filter map_from_arrays map_from_entries map_keys map_values
    map_zip_with mask md5 minute mod month monthname months_between named_struct nanvl negative next_day not now
    nullif nullifzero nvl nvl2 octet_length or overlay parse_json parse_url pi pmod position positive pow power
    printf quarter quote radians raise_error reduce regexp regexp_count regexp_extract regexp_extract_all
    regexp_instr regexp_like regexp_replace regexp_substr repeat replace reverse right rint rlike round rpad
    rtrim schema_of_csv schema_of_json schema_of_variant sec second sentences sequence sha sha1
    sha2 shiftleft shiftright shiftrightunsigned sign signum sin sinh size slice smallint sort_array soundex
    space split split_part sqrt st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid st_srid startswith
    str_to_map string struct substr substring substring_index tan tanh time time_bucket time_diff
    time_from_micros time_from_millis time_from_seconds time_to_micros time_to_millis time_to_seconds time_trunc
    timestamp timestamp_micros timestamp_millis timestamp_nanos timestamp_seconds tinyint to_base32 to_binary
    to_char to_csv to_date to_json to_number to_time to_timestamp to_timestamp_ltz to_timestamp_ntz
    to_unix_timestamp to_utc_timestamp to_varchar to_variant_object to_xml transform transform_keys
    transform_values translate trim trunc try_add try_aes_decrypt try_cast try_divide try_element_at
    try_make_interval try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz try_mod try_multiply
    try_parse_json try_parse_url try_subtract try_to_binary try_to_date try_to_number try_to_time
    try_to_timestamp try_url_decode try_validate_utf8 try_variant_array_append try_variant_get
    try_variant_insert try_variant_set typeof ucase unbase64 unhex unix_date unix_micros unix_millis unix_nanos
    unix_seconds unix_timestamp upper url_decode url_encode validate_utf8 variant_array_append variant_delete
    variant_get variant_insert variant_set variant_strip_nulls vector_cosine_similarity vector_inner_product
    vector_l2_distance vector_norm vector_normalize weekday weekofyear when width_bucket xxhash64 year
    zeroifnull zip_with"""
)
"""Functions of one row."""

GENERATORS = words("explode explode_outer json_tuple posexplode posexplode_outer inline inline_outer stack")
"""Functions that make rows, such as one for each element of an array or map."""

RANKS = frozenset(ORDERED) - {RUNNING_TOTAL}
"""Ranks, and values of other rows in an order. A running total is called by the name of its aggregate."""

FUNCTIONS = WINDOWS | AGGREGATES | SCALARS | GENERATORS | RANKS
"""All functions that query text may call, in lower case."""

REFUSED = {
    "calls any method of the JVM": words("java_method reflect try_reflect"),
    "reads the clock, so a repeated epoch would answer differently": words(
        """current_time localtime localtimestamp"""
    ),
    "depends on chance, so a repeated epoch would answer differently": words(
        "aes_encrypt rand randn random randstr shuffle uniform uuid"
    ),
    "reads the session, which is another one after a restart": words(
        """current_catalog current_database current_path current_schema current_timezone current_user session_user user
        version"""
    ),
    "depends on how the input is divided into files and tasks": words(
        """input_file_block_length input_file_block_start input_file_name monotonically_increasing_id
        spark_partition_id"""
    ),
    "opens a connection to the address that a DOCTYPE in its text names": words(
        """xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number xpath_short xpath_string"""
    ),
    "reads a file or an address that one of its options may name": words(
        "from_avro from_protobuf schema_of_avro schema_of_xml to_protobuf"
    ),
    "needs a package of Spark that a session may lack": words("to_avro"),
    "reads sketches, which no aggregate of a pond makes": words(
        """approx_top_k_estimate hll_sketch_estimate hll_union kll_sketch_get_n_bigint kll_sketch_get_n_double
        kll_sketch_get_n_float kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double
        kll_sketch_get_quantile_float kll_sketch_get_rank_bigint kll_sketch_get_rank_double
        kll_sketch_get_rank_float kll_sketch_merge_bigint kll_sketch_merge_double kll_sketch_merge_float
        kll_sketch_to_string_bigint kll_sketch_to_string_double kll_sketch_to_string_float theta_difference
        theta_intersection theta_sketch_estimate theta_union tuple_difference_double tuple_difference_integer
        tuple_difference_theta_double tuple_difference_theta_integer tuple_intersection_double
        tuple_intersection_integer tuple_intersection_theta_double tuple_intersection_theta_integer
        tuple_sketch_estimate_double tuple_sketch_estimate_integer tuple_sketch_summary_double
        tuple_sketch_summary_integer tuple_sketch_theta_double tuple_sketch_theta_integer tuple_union_double
        tuple_union_integer tuple_union_theta_double tuple_union_theta_integer"""
    ),
    "is an aggregate that a pond does not compute": words(
        """approx_top_k approx_top_k_accumulate approx_top_k_combine bitmap_and_agg bitmap_construct_agg bitmap_or_agg
        collect_union count_min_sketch hll_sketch_agg hll_union_agg kll_merge_agg_bigint
        kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double
        kll_sketch_agg_float measure schema_of_variant_agg theta_intersection_agg theta_sketch_agg
        theta_union_agg tuple_intersection_agg_double tuple_intersection_agg_integer tuple_sketch_agg_double
        tuple_sketch_agg_integer tuple_union_agg_double tuple_union_agg_integer vector_avg vector_sum"""
    ),
    "needs rows in an order": words("counter_diff"),
}
"""Why queries may not call the other functions of Spark's registry: reason -> names."""

WHY_REFUSED = {name: reason for reason, names in REFUSED.items() for name in names}
"""Function -> why queries may not call it."""

UNSTABLE = words(
    """CurrentTimestamp CurrentTimestampLike Now LocalTimestamp CurrentDate CurrentTime CurrentTimeZone
    CurrentUser SessionUser CurrentDatabase CurrentCatalog CurrentPath SparkVersion AesEncrypt
    UnixTimestampNow Uuid Rand Randn RandStr Uniform Shuffle MonotonicallyIncreasingID SparkPartitionID
    InputFileName InputFileBlockStart InputFileBlockLength CallMethodViaReflection Sleep VariableReference"""
)
"""Resolved expressions whose result depends on more than their arguments, even if Spark calls them deterministic."""

CLOCK = words("CurrentTimestamp Now CurrentDate")
"""Those of them that may be a value of the epoch, see `plan.options.clock_parameters`."""

UNSTABLE_METHODS = frozenset({"aesEncrypt", "getSparkVersion", "schemaOfXml"})
"""The same for methods by which Spark replaces functions while it analyses them."""

MOMENTS = ("timestamp", "timestamp_ntz", "date")
"""Types whose constants Spark may compute from the clock: `TIMESTAMP 'now'`, or a time without a date."""

OPAQUE = frozenset({"PythonUDAF", "PythonUDTF", "ScalaUDF", "ScalaAggregator", "ScalaUDAF", "HiveSimpleUDF"})
"""Resolved expressions that run code which cannot be identified, or whose failure would end the epoch."""
