"""Functions of Spark's registry: which ones queries may call, and what the others could do."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kit.inputs.gate import gate
from kit.judges.interpreted import interpreted_table
from millpond import Pond
from millpond.errors import QueryError, QueryRefused, UnsupportedQuery
from millpond.model.selection import Selection
from millpond.spark.catalyst.allow_list import FUNCTIONS, WHY_REFUSED
from millpond.spark.catalyst.value_bounds import VALUE_BYTES
from millpond.spark.frontend.frontend import FrontEnd

COLUMNS = (
    "id BIGINT, k STRING, j STRING, u STRING, a ARRAY<INT>, m MAP<STRING,INT>, d DOUBLE, b BINARY, v ARRAY<FLOAT>, "
    "ts TIMESTAMP"
)
MADE = """id, if(id % 7 = 0, NULL, concat(repeat('aé', int(id % 3)), ' b', id)), concat('{"a":', id, ',"b":[1,2]}'),
concat('http://h/p', id, '?q=', id % 5, '&r=x%20y'), if(id % 5 = 0, NULL, array(int(id), 3, NULL, int(id % 4), 3)),
map('x', int(id), concat('y', id % 2), NULL), id * 1.37D - 20, cast(concat('b', id) AS binary),
array(float(id), 2.5F), timestamp_micros(1700000000123456 + id * 7777777777)"""

CALLS = re.split(
    r";\s+",
    r"""acosh(abs(d) + 1); asinh(d); atanh(d / 100); bin(id); conv(string(id),10,16); cosh(d/9); cot(d); csc(d);
factorial(int(id%20)); hex(k); sec(d); sinh(d/9); tanh(d); try_mod(id,id%3); unhex(hex(k)); getbit(id,1);
shiftrightunsigned(id,2); equal_null(k,'b3'); bitmap_bit_position(id); bitmap_bucket_number(id); bitmap_count(b);
hmac(b,b); typeof(a); decode(b,'UTF-8'); encode(k,'UTF-16');
aes_decrypt(unhex('6E7CA17BBB468D3084B5744BCA729FB7B2B7BCB8E4472847D02670489D95FA97DBBA7D3210'),'0000111122223333');
array_append(a,int(id)); array_compact(a); array_distinct(a); array_except(a,array(3)); array_insert(a,2,9);
array_insert(a,-2,9); array_intersect(a,array(3)); array_join(transform(a,x->string(x)),',','-');
array_position(a,3); array_prepend(a,1); array_remove(a,3); array_repeat(k,int(id%3)); array_size(a);
array_union(a,array(8)); arrays_overlap(a,array(1)); to_json(arrays_zip(a,a)); flatten(array(a,a));
sequence(id,id+3); sequence(int(id%4),0,-1); sequence(ts,ts+INTERVAL 2 HOURS,INTERVAL 30 MINUTES); slice(a,2,2);
sort_array(a,false); array_sort(a); array_sort(a,(x,y)->coalesce(y,0)-coalesce(x,0)); map_filter(m,(x,y)->y>3);
map_zip_with(m,m,(x,y,z)->y+z); transform_keys(m,(x,y)->concat(x,'!')); transform_values(m,(x,y)->y+1);
zip_with(a,a,(x,y)->x+y); base64(b); char(65+id%20); chr(65+id%20); collation(k); elt(1+int(id%2),k,'z');
find_in_set('b','a,b'); format_number(d,2); format_number(d,'#.###'); format_string('%s-%05d|%.2f',k,id,d);
printf('%x',id); from_base32(to_base32(b)); is_valid_utf8(k); jaro_winkler_similarity(k,'ab3'); len(k);
levenshtein(k,'ab3'); lpad(k,9,'*'); luhn_check(string(id)); make_valid_utf8(k); mask(k); quote(k);
regexp_count(k,'a'); regexp_extract_all(k,'(b)',1); regexp_instr(k,'b'); regexp_substr(k,'b.'); repeat(k,3);
rpad(k,9); sentences(k); space(int(id%4)); to_binary('AB','hex'); to_char(id,'9999'); to_number('12','99');
to_varchar(id,'9999'); try_to_binary(k,'hex'); try_to_number(k,'99'); unbase64(base64(b)); validate_utf8(k);
convert_timezone('UTC','Asia/Tokyo',timestamp_ntz'2024-01-01 00:00:00'); date_from_unix_date(int(id));
datepart('DOY',ts); dayname(ts); from_utc_timestamp(ts,'Asia/Tokyo');
make_timestamp_ltz(2024,1,1,int(id%24),0,0); make_timestamp_ntz(2024,1,1,1,0,id%60);
string(make_dt_interval(1,id%5)); string(make_ym_interval(1,int(id%5))); monthname(ts);
to_timestamp_ltz('2024-01-01'); to_timestamp_ntz('2024-01-01'); to_unix_timestamp('2024-01-01','yyyy-MM-dd');
to_utc_timestamp(ts,'Asia/Tokyo'); unix_timestamp(ts); unix_timestamp('2024-01-01','yyyy-MM-dd');
unix_date(date(ts)); time_bucket(INTERVAL 30 MINUTES,ts); timestampadd(HOUR,1,ts);
timestampdiff(MINUTE,ts,ts+INTERVAL 2 HOURS); try_to_date('2024-13-01'); try_make_timestamp(2024,13,1,1,1,1);
string(try_make_interval(1)); to_csv(named_struct('a',id,'b',k)); from_csv(concat(id,',x'),'a BIGINT, b STRING');
schema_of_csv('1,a'); to_xml(named_struct('a',id)); from_xml('<r><a>1</a></r>','a INT');
string(parse_json(j)); variant_get(parse_json(j),'$.b[1]','int');
try_variant_get(parse_json(j),'$.a','string'); is_valid_variant(parse_json(j));
is_variant_null(parse_json('null')); schema_of_variant(parse_json(j));
to_json(to_variant_object(named_struct('a',id))); to_json(variant_set(parse_json(j),'$.c',id));
to_json(variant_delete(parse_json(j),'$.a')); json_array_length('[1,2]'); json_object_keys(j);
schema_of_json('{"a":1}'); to_json(named_struct('a',id,'t',ts)); map_concat(m,map('z',1));
map_contains_key(m,'y0'); map_entries(m); map_from_arrays(array('a'),array(id));
map_from_entries(array(struct(id,k))); str_to_map('a=1,b=2',',','='); parse_url(u,'QUERY','q');
try_parse_url(k,'HOST'); url_decode('x%20y'); url_encode(k); try_url_decode('%'); vector_norm(v);
vector_normalize(v); vector_inner_product(v,v); vector_cosine_similarity(v,v); vector_l2_distance(v,v);
coalesce(assert_true(id >= 0), 1)""",
)
"""Calls of the functions that texts could not call before."""

OUTPUTS = [f"{call} AS c{place}" for place, call in enumerate(CALLS)]


def test_texts_and_frames_call_sparks_functions_with_sparks_answers(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(0, 40, 1, 1).createOrReplaceTempView("ids")
    names = ", ".join(column.split()[0] for column in COLUMNS.split(", "))
    spark.sql(f"SELECT * FROM (SELECT {MADE} FROM ids) AS t({names})").write.parquet(str(tmp_path / "in"))
    with Pond(spark, tmp_path / "pond", instances=1) as pond:
        pond.load(f"CREATE TABLE ev ({COLUMNS}) USING parquet OPTIONS (path '{tmp_path / 'in'}');")
        text = pond.add("by_text", f"SELECT id, {', '.join(OUTPUTS)} FROM STREAM ev")
        stream = spark.readStream.schema(COLUMNS).parquet(str(tmp_path / "in"))
        frame = pond.add("by_frame", stream.selectExpr("id", *OUTPUTS[::5]))
        pond.run()
        ours = pond.table("by_text")
    batch = spark.read.schema(COLUMNS).parquet(str(tmp_path / "in"))
    expected = interpreted_table(batch.selectExpr("id", *OUTPUTS))
    assert isinstance(text, Selection) and isinstance(frame, Selection) and frame.output[1:] == text.output[1::5]
    assert ours.num_rows == expected.num_rows == 40
    differing = [call for call, name in zip(CALLS, expected.column_names[1:], strict=True) if
                 repr(ours.sort_by("id")[name].to_pylist()) != repr(expected.sort_by("id")[name].to_pylist())]
    assert not differing


def test_every_function_of_spark_is_allowed_or_refused_with_a_reason(spark: SparkSession) -> None:
    registered = spark._jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.functionSet()
    names = {name.split(".")[-1] for name in str(registered.mkString(" ")).replace("`", "").split()}
    names = {name for name in names if name.isidentifier()}  # the others are operators
    assert len(names) > 500
    assert names - FUNCTIONS - {*WHY_REFUSED} == set()
    assert {*WHY_REFUSED} <= names


def test_refused_functions_are_refused_by_name_with_their_reason(spark: SparkSession) -> None:
    for name, reason in WHY_REFUSED.items():
        for written in (name, f"`{name.upper()}`"):
            with pytest.raises(QueryRefused) as refused:
                gate(spark, f"SELECT count(*) FROM tx WHERE {written}('a', 'b') = 'a'", ["tx"])
            assert name in refused.value.what.lower()
            assert reason in refused.value.what


@contextmanager
def listener() -> Iterator[tuple[str, list[bytes]]]:
    """The address of a server of this host, and the first bytes of every request to it."""
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    requests.append(connection.recv(200))
                    connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", requests
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_no_function_of_a_frame_reaches_files_the_network_or_chance(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.readStream.schema("k STRING, n BIGINT, b BINARY").parquet(str(tmp_path))
    front = FrontEnd(spark.newSession())
    with listener() as (address, requests):
        doctype = f"concat('<!DOCTYPE a SYSTEM \"{address}/x\"><a>', k, '</a>')"
        once = spark.range(1).selectExpr("string(id) AS k")
        once.selectExpr(f"xpath({doctype}, 'a')").collect()
        assert requests, "a function of Spark that reaches the network is what this test is about"
        requests.clear()
        for call in (
            f"xpath({doctype}, 'a')", f"xpath_string({doctype}, 'a')", f"xpath_boolean({doctype}, 'a')",
            f"from_xml(k, 'a INT', map('rowValidationXSDPath', '{address}/xsd'))",
            f"schema_of_xml('<a/>', map('rowvalidationxsdpath', '{address}/xsd'))",
            "aes_encrypt(k, '0000111122223333')", "version()", "hll_sketch_estimate(b)", "uuid()", "rand()",
            "java_method('java.lang.System', 'getenv', 'HOME')", "try_reflect('java.lang.System', 'getenv', 'HOME')",
            "current_user()", "input_file_name()", "localtimestamp()", "convert_timezone('UTC', to_timestamp_ntz(k))",
        ):  # fmt: skip
            with pytest.raises(UnsupportedQuery):
                pytest.fail(str(front.query_from_dataframe("q", rows.selectExpr("n", f"{call} AS x"))))
        assert not requests


def test_moments_that_the_clock_completes_are_refused_wherever_they_are_parsed(
    spark: SparkSession, tmp_path: Path
) -> None:
    front = FrontEnd(spark.newSession())
    front.load_file(f"CREATE TABLE ev (k STRING, n BIGINT) USING json OPTIONS (path '{tmp_path}');")
    for call in (
        "from_csv(k, 't TIMESTAMP')", "from_xml(k, 't TIMESTAMP')", "variant_get(parse_json(k), '$', 'timestamp')",
        "try_variant_get(parse_json(k), '$.a', 'timestamp')", "cast(parse_json(k) AS TIMESTAMP)",
        "from_csv(k, 't TIMESTAMP', map('timestampFormat', 'yyyy', 'enableDateTimeParsingFallback', 'true'))",
    ):  # fmt: skip
        with pytest.raises(UnsupportedQuery, match="depends on the clock"):
            front.query_from_sql("q", f"SELECT n, {call} AS x FROM STREAM ev")
    for call in ("str_to_map(k, '(a+)+b')", "parse_url(k, 'QUERY', '(a+)+b')", "regexp_count(k, '(a+)+b')"):
        with pytest.raises(QueryRefused, match=r"2\^n"):
            front.query_from_sql("q", f"SELECT n, {call} AS x FROM STREAM ev")
    for call in (
        "format_string(k, n)", "format_string('%99999999d', n)", "printf('%.99999999f', n)",
        "format_string(concat('%9', '9999999d'), n)", "format_string('%6000d%6000d', n, n)",
        "format_string('%1$s%1$s%1$s%1$s%1$s', k)", "format_string('%s%<s%<s%<s%<s', k)",
    ):  # fmt: skip
        with pytest.raises(UnsupportedQuery, match="text of any length"):
            front.query_from_sql("q", f"SELECT n, {call} AS x FROM STREAM ev")
    for call in (
        "repeat('x', 1000000000)", "lpad('x', 1000000000, 'y')", "rpad('x', 1000000000)", "space(1000000000)",
        "array_repeat(1, 1000000000)", "sequence(1, 1000000000)", "array_insert(array(1), 1000000000, 1)",
        "array_insert(array(1), -1000000000, 1)", "format_number(1.5, 1000000000)",
    ):  # fmt: skip
        with pytest.raises(QueryError, match="bytes of constants"):
            front.query_from_sql("q", f"SELECT n, {call} AS x FROM STREAM ev")


LARGE = {
    "sequence(0, n)": "sequence(0, 3)", "sequence(n, 0)": "sequence(3, 0)", "sequence(0, n, 2)": "sequence(0, 3, 2)",
    "sequence(ts, timestampadd(SECOND, n, ts), INTERVAL 1 MILLISECOND)[3]": "ts + INTERVAL 3 MILLISECONDS",
    "array_repeat(k, int(n))": "array('a', 'a', 'a')", "array_insert(array(7), int(n), 1)": "array(7, NULL, 1)",
    "array_insert(array(7), -int(n), 1)": "array(1, NULL, 7)", "repeat(k, int(n))": "'aaa'",
    "lpad(k, int(n), 'b')": "'bba'", "rpad(k, int(n), 'b')": "'abb'", "concat('[', space(int(n)), ']')": "'[   ]'",
    "format_number(1.5D, int(n))": "'1.500'",
    "levenshtein(repeat(k, int(n / 40000)), repeat('b', int(n / 40000)))": "0",
}  # fmt: skip


def test_an_event_that_a_function_makes_too_large_is_dead_before_the_value_is_made(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    lines = [{"k": "a", "n": n, "ts": "2024-01-01T00:00:00Z"} for n in (3, 2_000_000_000)]
    (source / "1.json").write_text("\n".join(map(json.dumps, lines)))
    with Pond(spark, tmp_path / "pond", instances=1) as pond:
        pond.load(f"CREATE TABLE ev (k STRING, n BIGINT, ts TIMESTAMP) USING json OPTIONS (path '{source}');")
        for place, call in enumerate(LARGE):
            pond.add(f"q{place}", f"SELECT n, {call} AS x FROM STREAM ev")
        pond.run()
        found = [pond.table(f"q{place}").to_pylist() for place in range(len(LARGE))]
        dead = [pond.counts()[f"q{place}"].whole.dead for place in range(len(LARGE))]
    values = ", ".join(f"{value} AS c{place}" for place, value in enumerate(LARGE.values()))
    batch = spark.sql(f"SELECT {values} FROM VALUES (TIMESTAMP '2024-01-01 00:00:00') AS t(ts)")
    [expected] = batch.toArrow().to_pylist()
    for (call, value), rows, lost in zip(zip(LARGE, expected.values(), strict=True), found, dead, strict=True):
        assert ([row["n"] for row in rows], lost) == ([3], 1), call
        assert rows[0]["x"] == value, call
    assert VALUE_BYTES < 2_000_000_000
