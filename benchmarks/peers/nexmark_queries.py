"""The queries of Nexmark that a pond answers, in three dialects: a pond's, Flink's, and DuckDB's, which is the judge.

Numbers and meanings are those of github.com/nexmark/nexmark. Of its 23 queries

* q3, q20 join two streams without any bound in time; a pond forgets events an hour after their time, which is more than
  a sample lasts;
* q4 and q6 average the winning bids of such a join, which change; q23 is a join of three streams without bounds: a pond
  does not take these;
* q9 and q19 number bids over all time; DuckDB orders bids of equal price as a pond does;
* q10 writes files by day and minute; here the rows have these columns, and each engine has the sink of all queries;
* q13 joins a table as of the time of processing; here the table does not change, and Flink joins it as a stream;
* q12 counts by the clock of the engine. A pond has none, so that a repeated epoch answers the same; here all engines
  count by `arrived`, the clock of the broker;
* q14's user-defined function counts a letter; here a text without that letter is compared with the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nexmark_events import SIDE_INPUT

_BID = "STREAM bid WATERMARK ts DELAY OF INTERVAL 0 SECONDS"
_AUCTION = "STREAM auction WATERMARK ts DELAY OF INTERVAL 0 SECONDS"
_PERSON = "STREAM person WATERMARK ts DELAY OF INTERVAL 0 SECONDS"
_TEN = "INTERVAL '10' SECOND"


class Query(NamedTuple):
    """One query. `pond`: statements by name, each may read those before it, the last one answers; `flink`: the columns
    of its sink and its statement; `duck`: the same rows in DuckDB. Where a row has versions, `total` is the column that
    grows with each of them, and `keys` are those that name the row. `ttl`: how long a pond keeps events of a join
    without bounds.
    """

    pond: Mapping[str, str]
    columns: str
    flink: str
    duck: str
    total: str | None = None
    keys: tuple[str, ...] = ()
    ttl: str | None = None

    @property
    def name(self) -> str:
        """The name of the statement that answers."""
        return list(self.pond)[-1]

    @property
    def options(self) -> dict[str, str]:
        """The options with which a pond adds the query."""
        emit = {"emit": "update" if self.total else "final"}
        return {**emit, "state_ttl": self.ttl} if self.ttl else emit


def _simple(name: str, columns: str, select: str, flink: str | None = None) -> Query:
    """A query that says nearly the same in all dialects."""
    return Query({name: f"{select} FROM STREAM bid"}, columns, f"{flink or select} FROM bid", f"{select} FROM bid")


def _hops(select: str) -> str:
    """Bids in windows of ten seconds that slide by two, in DuckDB."""
    start = "time_bucket(INTERVAL 2 SECONDS, ts) - to_seconds(2 * i)"
    return f"SELECT {select} FROM (SELECT *, {start} AS w FROM bid, range(5) AS r(i)) GROUP BY ALL"


_LEVELS = {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000", "rank3": "price >= 1000000"}


def _by_level(counted: str, of: str) -> str:
    """How many there are of something, and how many at each level of price."""
    levels = [f"count({counted}) FILTER (WHERE {what}) AS {name}_{of}" for name, what in _LEVELS.items()]
    return ", ".join([f"count({counted}) AS total_{of}", *levels])


def _longs(text: str) -> str:
    """Columns of BIGINT, one per alias in a list of expressions."""
    return ", ".join(f"{part.rpartition(' AS ')[2]} BIGINT" for part in text.split(", ") if " AS " in part)


def _daily(name: str, columns: str, select: str, flink: str, duck: str, *keys: str) -> Query:
    """Counts by day that are emitted as updates."""
    pond, judge = f"{select} FROM {_BID} GROUP BY ALL", f"{duck} FROM bid GROUP BY ALL"
    return Query({name: pond}, columns, flink, judge, "total_bids", ("day", *keys))


def _newest(columns: str, stream: str) -> str:
    """The newest bid of each bidder for each auction."""
    number = "row_number() OVER (PARTITION BY bidder, auction ORDER BY ts DESC) AS rank_number"
    return f"SELECT {columns} FROM (SELECT *, {number} FROM {stream}) WHERE rank_number <= 1"


def _first(columns: str, rows: str, by: str, most: int, order: str = "price DESC") -> str:
    """The first rows of each key."""
    number = f"row_number() OVER (PARTITION BY {by} ORDER BY {order}) AS rank_number"
    return f"SELECT {columns} FROM (SELECT *, {number} FROM {rows}) WHERE rank_number <= {most}"


_EUROS = "0.908 * price"
_CALCULATED = (
    "SELECT auction, bidder, 0.908 * price AS price,"
    " CASE WHEN hour(ts) >= 8 AND hour(ts) <= 18 THEN 'dayTime' WHEN hour(ts) <= 6 OR hour(ts) >= 20 THEN 'nightTime'"
    " ELSE 'otherTime' END AS kind, ts, extra,"
    " length(extra) - length(replace(extra, 'c', '')) AS c"
)
_IN_BOUNDS = f"WHERE {_EUROS} > 1000000 AND {_EUROS} < 50000000"
_NUMBERED = "regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)"
_HOT = "lower(channel) IN ('apple', 'google', 'facebook', 'baidu')"
_CHANNEL = (
    "SELECT auction, bidder, price, channel, CASE WHEN lower(channel) = 'apple' THEN '0'"
    " WHEN lower(channel) = 'google' THEN '1' WHEN lower(channel) = 'facebook' THEN '2'"
    f" WHEN lower(channel) = 'baidu' THEN '3' ELSE {_NUMBERED} END AS channel_id"
)
_BIDS = _by_level("*", "bids")
_BY_DAY = ", ".join([_BIDS, _by_level("DISTINCT bidder", "bidders"), _by_level("DISTINCT auction", "auctions")])
_PRICES = "min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price"
_DAY = "date_format(ts, 'yyyy-MM-dd') AS day"
_TIMED = "SELECT auction, bidder, price, ts, extra"
_BID_COLUMNS = "auction, bidder, price, channel, url, ts, extra"
_SUGGESTED = "SELECT p.name, p.city, p.state, a.id"
_IN_PLACE = "ON a.seller = p.id WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')"
_EXPANDED = (
    "SELECT auction, bidder, price, channel, url, b.ts, b.extra, item, description, initial_bid, reserve,"
    " a.ts AS opened, expires, seller, category, a.extra AS more"
)
_OF_CATEGORY = "ON b.auction = a.id WHERE a.category = 10"
_WON = (
    "(SELECT a.*, b.auction, b.bidder, b.price, b.ts AS bid_ts, b.extra AS bid_extra FROM {} AS a JOIN {} AS b"
    " ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires)"
)
_WON_COLUMNS = (
    "id, item, description, initial_bid, reserve, ts, expires, seller, category, extra, auction, bidder, price, bid_ts,"
    " bid_extra"
)
_SIDE = "SELECT b.auction, b.bidder, b.price, b.ts, s.side_value"
_JOIN_SIDE = "JOIN side_input s ON MOD(b.auction, 10000) = s.side_key"
_FLINK_DAY = "DATE_FORMAT(ts, 'yyyy-MM-dd')"
_DUCK_DAY = "strftime(ts, '%Y-%m-%d') AS day"
_FLINK_HOP = "TABLE(HOP(TABLE bid, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '10' SECOND))"


def _tumble(table: str, column: str = "ts") -> str:
    return f"TABLE(TUMBLE(TABLE {table}, DESCRIPTOR({column}), {_TEN}))"


def _windows(columns: str) -> str:
    return f"SELECT {columns}, window_start, window_end FROM"


_WINDOW = "GROUP BY {}, window_start, window_end"
_BOTH = "window_start TIMESTAMP(3), window_end TIMESTAMP(3)"

_FLINK_COUNTS = f"{_windows('auction, COUNT(*) AS num')} {_FLINK_HOP} {_WINDOW.format('auction')}"
_NEW = f"{_windows('id, name')} {_tumble('person')} {_WINDOW.format('id, name')}"
_SELLERS = f"{_windows('seller')} {_tumble('auction')} {_WINDOW.format('seller')}"

QUERIES: dict[str, Query] = {
    "q0": _simple(
        "q0", "auction BIGINT, bidder BIGINT, price BIGINT, ts TIMESTAMP_LTZ(3), extra STRING",
        "SELECT auction, bidder, price, ts, extra",
    ),
    "q1": _simple(
        "q1", "auction BIGINT, bidder BIGINT, price DECIMAL(23, 3), ts TIMESTAMP_LTZ(3), extra STRING",
        f"SELECT auction, bidder, {_EUROS} AS price, ts, extra",
    ),
    "q2": Query(
        {"q2": "SELECT auction, price FROM STREAM bid WHERE auction % 123 = 0"}, "auction BIGINT, price BIGINT",
        "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
        "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    ),
    "q3": Query(
        {"q3": f"{_SUGGESTED} FROM {_AUCTION} AS a JOIN {_PERSON} AS p {_IN_PLACE}"},
        "name STRING, city STRING, state STRING, id BIGINT",
        f"{_SUGGESTED} FROM auction AS a JOIN person AS p {_IN_PLACE}",
        f"{_SUGGESTED} FROM auction AS a JOIN person AS p {_IN_PLACE}", ttl="1 hour",
    ),
    "q5": Query(
        {
            "q5_counts": "SELECT auction, count(*) AS num, window(ts, '10 seconds', '2 seconds') AS w"
            f" FROM {_BID} GROUP BY ALL",
            "q5_most": "SELECT max(num) AS num, window(w, '2 seconds') AS w FROM STREAM q5_counts GROUP BY ALL",
            "q5": "SELECT c.auction, c.num FROM STREAM q5_counts c JOIN STREAM q5_most m"
            " ON c.num = m.num AND c.w.end = m.w.end",
        },
        "auction BIGINT, num BIGINT",
        f"SELECT c.auction, c.num FROM ({_FLINK_COUNTS}) c"
        f" JOIN (SELECT MAX(num) AS num, window_start, window_end FROM ({_FLINK_COUNTS})"
        " GROUP BY window_start, window_end) m"
        " ON c.num = m.num AND c.window_start = m.window_start AND c.window_end = m.window_end",
        f"WITH c AS ({_hops('auction, count(*) AS num, w')})"
        " SELECT auction, num FROM c WHERE num = (SELECT max(num) FROM c AS d WHERE d.w = c.w)",
    ),
    "q7": Query(
        {
            "q7_most": f"SELECT max(price) AS price, window(ts, '10 seconds') AS w FROM {_BID} GROUP BY ALL",
            "q7": f"SELECT b.auction, b.price, b.bidder, b.ts, b.extra FROM {_BID} AS b JOIN STREAM q7_most m"
            " ON b.price = m.price AND b.ts BETWEEN m.w.end - INTERVAL 10 SECONDS AND m.w.end",
        },
        "auction BIGINT, price BIGINT, bidder BIGINT, ts TIMESTAMP_LTZ(3), extra STRING",
        "SELECT b.auction, b.price, b.bidder, b.ts, b.extra FROM bid b JOIN (SELECT MAX(price) AS price, window_end"
        f" FROM {_tumble('bid')} GROUP BY window_start, window_end) m ON b.price = m.price"
        " AND CAST(b.ts AS TIMESTAMP(3)) BETWEEN m.window_end - INTERVAL '10' SECOND AND m.window_end",
        "WITH m AS (SELECT max(price) AS price, time_bucket(INTERVAL 10 SECONDS, ts) + INTERVAL 10 SECONDS AS e"
        " FROM bid GROUP BY ALL) SELECT b.auction, b.price, b.bidder, b.ts, b.extra FROM bid b JOIN m"
        " ON b.price = m.price AND b.ts BETWEEN m.e - INTERVAL 10 SECONDS AND m.e",
    ),
    "q8": Query(
        {
            "q8_new": "SELECT id, name, count(*) AS n, window(ts, '10 seconds') AS w"
            f" FROM {_PERSON} GROUP BY ALL",
            "q8_sellers": "SELECT seller, count(*) AS n, window(ts, '10 seconds') AS w"
            f" FROM {_AUCTION} GROUP BY ALL",
            "q8": "SELECT p.id, p.name, p.w.start AS since FROM STREAM q8_new p JOIN STREAM q8_sellers a"
            " ON p.id = a.seller AND p.w = a.w",
        },
        "id BIGINT, name STRING, since TIMESTAMP(3)",
        f"SELECT p.id, p.name, p.window_start FROM ({_NEW}) p JOIN ({_SELLERS}) a"
        " ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end",
        "SELECT DISTINCT p.id, p.name, time_bucket(INTERVAL 10 SECONDS, p.ts) AS since FROM person p JOIN auction a"
        " ON p.id = a.seller AND time_bucket(INTERVAL 10 SECONDS, p.ts) = time_bucket(INTERVAL 10 SECONDS, a.ts)",
    ),
    "q9": Query(
        {"q9": _first(_WON_COLUMNS, _WON.format(_AUCTION, _BID), "id", 1, "price DESC, bid_ts ASC")},
        "id BIGINT, item STRING, description STRING, initial_bid BIGINT, reserve BIGINT, ts TIMESTAMP_LTZ(3),"
        " expires TIMESTAMP_LTZ(6), seller BIGINT, category BIGINT, extra STRING, auction BIGINT, bidder BIGINT,"
        " price BIGINT, bid_ts TIMESTAMP_LTZ(3), bid_extra STRING",
        _first(_WON_COLUMNS, _WON.format("auction", "bid"), "id", 1, "price DESC, bid_ts ASC"),
        _first(_WON_COLUMNS, _WON.format("auction", "bid"), "id", 1, "price DESC, bid_ts ASC"),
        "price", ("id",), ttl="1 hour",
    ),
    "q10": Query(
        {"q10": f"{_TIMED}, {_DAY}, date_format(ts, 'HH:mm') AS minute FROM STREAM bid"},
        "auction BIGINT, bidder BIGINT, price BIGINT, ts TIMESTAMP_LTZ(3), extra STRING, day_ STRING, minute_ STRING",
        f"{_TIMED}, {_FLINK_DAY}, DATE_FORMAT(ts, 'HH:mm') FROM bid",
        f"{_TIMED}, {_DUCK_DAY}, strftime(ts, '%H:%M') AS minute FROM bid",
    ),
    "q11": Query(
        {
            "q11": "SELECT bidder, count(*) AS n, session_window(ts, '10 seconds').start AS since,"
            f" session_window(ts, '10 seconds').end AS until FROM {_BID}"
            " GROUP BY bidder, session_window(ts, '10 seconds')"
        },
        f"bidder BIGINT, n BIGINT, {_BOTH}",
        f"SELECT bidder, COUNT(*), window_start, window_end FROM TABLE(SESSION(TABLE bid PARTITION BY bidder,"
        f" DESCRIPTOR(ts), {_TEN})) {_WINDOW.format('bidder')}",
        "WITH b AS (SELECT bidder, ts, lag(ts) OVER k IS NULL OR ts > lag(ts) OVER k + INTERVAL 10 SECONDS AS new"
        " FROM bid WINDOW k AS (PARTITION BY bidder ORDER BY ts)),"
        " s AS (SELECT *, sum(new::INT) OVER (PARTITION BY bidder ORDER BY ts ROWS UNBOUNDED PRECEDING) AS s FROM b)"
        " SELECT bidder, count(*) AS n, min(ts) AS since,"
        " max(ts) + INTERVAL 10 SECONDS AS until FROM s GROUP BY bidder, s",
    ),
    "q12": Query(
        {
            "q12": "SELECT bidder, count(*) AS n, window(arrived, '10 seconds').start AS since,"
            " window(arrived, '10 seconds').end AS until FROM STREAM bid_arrived WATERMARK arrived"
            " DELAY OF INTERVAL 0 SECONDS GROUP BY bidder, window(arrived, '10 seconds')"
        },
        f"bidder BIGINT, n BIGINT, {_BOTH}",
        f"SELECT bidder, COUNT(*), window_start, window_end FROM {_tumble('bid_arrived', 'arrived')}"
        f" {_WINDOW.format('bidder')}",
        "SELECT bidder, count(*) AS n, time_bucket(INTERVAL 10 SECONDS, arrived) AS since,"
        " time_bucket(INTERVAL 10 SECONDS, arrived) + INTERVAL 10 SECONDS AS until FROM bid GROUP BY ALL",
    ),
    "q13": Query(
        {"q13": f"{_SIDE} FROM STREAM bid b {_JOIN_SIDE}"},
        "auction BIGINT, bidder BIGINT, price BIGINT, ts TIMESTAMP_LTZ(3), side_value STRING",
        f"{_SIDE} FROM bid b {_JOIN_SIDE}", f"{_SIDE} FROM bid b {_JOIN_SIDE}",
    ),
    "q14": Query(
        {"q14": f"{_CALCULATED} FROM STREAM bid {_IN_BOUNDS}"},
        "auction BIGINT, bidder BIGINT, price DECIMAL(23, 3), kind STRING, ts TIMESTAMP_LTZ(3), extra STRING, c INT",
        f"{_CALCULATED.replace('length', 'CHAR_LENGTH')} FROM bid {_IN_BOUNDS}",
        f"{_CALCULATED} FROM bid {_IN_BOUNDS}",
    ),
    "q15": _daily(
        "q15", f"day_ STRING, {_longs(_BY_DAY)}", f"SELECT {_DAY}, {_BY_DAY}",
        f"SELECT {_FLINK_DAY}, {_BY_DAY} FROM bid GROUP BY {_FLINK_DAY}", f"SELECT {_DUCK_DAY}, {_BY_DAY}",
    ),
    "q16": _daily(
        "q16", f"channel STRING, day_ STRING, minute_ STRING, {_longs(_BY_DAY)}",
        f"SELECT channel, {_DAY}, max(date_format(ts, 'HH:mm')) AS minute, {_BY_DAY}",
        f"SELECT channel, {_FLINK_DAY}, MAX(DATE_FORMAT(ts, 'HH:mm')), {_BY_DAY}"
        f" FROM bid GROUP BY channel, {_FLINK_DAY}",
        f"SELECT channel, {_DUCK_DAY}, max(strftime(ts, '%H:%M')) AS minute, {_BY_DAY}", "channel",
    ),
    "q17": _daily(
        "q17", f"auction BIGINT, day_ STRING, {_longs(_BIDS)}, {_longs(_PRICES)}",
        f"SELECT auction, {_DAY}, {_BIDS}, {_PRICES}",
        f"SELECT auction, {_FLINK_DAY}, {_BIDS}, {_PRICES} FROM bid GROUP BY auction, {_FLINK_DAY}",
        f"SELECT auction, {_DUCK_DAY}, {_BIDS}, {_PRICES}", "auction",
    ),
    "q18": Query(
        {"q18": _newest(_BID_COLUMNS, _BID)},
        "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, ts TIMESTAMP_LTZ(3), extra STRING",
        _newest(_BID_COLUMNS, "bid"), _newest(_BID_COLUMNS, "bid"), "ts", ("auction", "bidder"),
    ),
    "q19": Query(
        {"q19": _first(f"{_BID_COLUMNS}, rank_number", _BID, "auction", 10)},
        "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, ts TIMESTAMP_LTZ(3), extra STRING,"
        " rank_number BIGINT",
        _first(f"{_BID_COLUMNS}, rank_number", "bid", "auction", 10),
        _first(f"{_BID_COLUMNS}, rank_number", "bid", "auction", 10, "price DESC, ts, bidder, channel, url"),
        "price", ("auction", "rank_number"),
    ),
    "q20": Query(
        {"q20": f"{_EXPANDED} FROM {_BID} AS b JOIN {_AUCTION} AS a {_OF_CATEGORY}"},
        "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, ts TIMESTAMP_LTZ(3), extra STRING,"
        " item STRING, description STRING, initial_bid BIGINT, reserve BIGINT, opened TIMESTAMP_LTZ(3),"
        " expires TIMESTAMP_LTZ(6), seller BIGINT, category BIGINT, more STRING",
        f"{_EXPANDED} FROM bid AS b JOIN auction AS a {_OF_CATEGORY}",
        f"{_EXPANDED} FROM bid AS b JOIN auction AS a {_OF_CATEGORY}", ttl="1 hour",
    ),
    "q21": Query(
        {"q21": f"{_CHANNEL} FROM STREAM bid WHERE {_NUMBERED} <> '' OR {_HOT}"},
        "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, channel_id STRING",
        f"{_CHANNEL} FROM bid WHERE {_NUMBERED} IS NOT NULL OR {_HOT}",
        f"{_CHANNEL} FROM bid WHERE {_NUMBERED} <> '' OR {_HOT}",
    ),
    "q22": _simple(
        "q22", "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, dir1 STRING, dir2 STRING, dir3 STRING",
        "SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,"
        " split_part(url, '/', 6) AS dir3",
        "SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3), SPLIT_INDEX(url, '/', 4),"
        " SPLIT_INDEX(url, '/', 5)",
    ),
}  # fmt: skip
"""Every query that is answered, by its number."""


def _tables(schemas: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Name, kind and event time of each table: bids twice, since a table has one event time."""
    return [*((kind, kind, "ts") for kind in schemas), ("bid_arrived", "bid", "arrived")]


def streams(folder: str, schemas: Mapping[str, str], files: int = 1) -> str:
    """The statements that declare the streams of a pond, with the number of files of each that an epoch reads."""
    made = [
        f"CREATE TABLE {name} ({schemas[kind]}) USING parquet"
        f" OPTIONS (path '{folder}/{kind}', maxFilesPerTrigger '{files}');"
        for name, kind, _ in _tables(schemas)
    ]
    return "\n".join([*made, f"CREATE TEMPORARY VIEW side_input USING parquet OPTIONS (path '{folder}/side_input');"])


def flink_tables(folders: Mapping[str, str], schemas: Mapping[str, str]) -> list[str]:
    """The tables that Flink reads."""
    made = []
    for name, kind, time in _tables(schemas):
        columns = schemas[kind].replace(" TIMESTAMP", " TIMESTAMP_LTZ(6)").split(", ")
        # a time attribute has three digits at most
        columns = [column.replace(f"{time} TIMESTAMP_LTZ(6)", f"{time} TIMESTAMP_LTZ(3)") for column in columns]
        made.append(
            f"CREATE TABLE {name} ({', '.join(columns)}, WATERMARK FOR {time} AS {time}) {_flink_files(folders[kind])}"
        )
    return [*made, f"CREATE TABLE side_input ({SIDE_INPUT}) {_flink_files(folders['side_input'])}"]


def _flink_files(folder: str) -> str:
    return f"WITH ('connector' = 'filesystem', 'path' = 'file://{folder}', 'format' = 'parquet')"


def flink_pass(names: Sequence[str], tables: Sequence[str], seconds: float) -> dict[str, object]:
    """A pass of Flink that answers some queries together."""
    sinks = [f"CREATE TABLE out_{name} ({QUERIES[name].columns}) WITH ('connector' = 'blackhole')" for name in names]
    inserts = [f"INSERT INTO out_{name} {QUERIES[name].flink}" for name in names]
    return {"tables": [*tables, *sinks], "inserts": inserts, "seconds": seconds}
