"""Queries as people write them, over five kinds of streams: the same SQL or DataFrame for Spark and for a pond."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

TABLES = {
    # fraud
    "tx": (
        "id bigint, card string, merchant string, kind string, amount double, qty int, flagged boolean, ts timestamp",
        """id, if(id % 11 = 0, NULL, concat('c', id % 7)), concat('m', id % 5),
        element_at(array('pos', 'atm', 'web'), cast(id * 7 % 3 + 1 AS int)), if(id % 13 = 0, NULL, id % 40 * 0.25D - 1),
        cast(id % 6 - 2 AS int), id % 4 = 0, timestamp_seconds(1700000000 + id * 97)""",
    ),
    "refunds": (
        "id bigint, card string, merchant string, amount double, at timestamp",
        """id, concat('c', id % 7), concat('m', id % 6), id % 9 * 0.5D, timestamp_seconds(1700000100 + id * 211)""",
    ),
    # shops
    "orders": (
        "id bigint, customer string, items array<struct<sku:string,price:double,at:timestamp>>, "
        "attributes map<string,int>, tags string, ts timestamp",
        """id, concat('c', id % 4), if(id % 5 = 0, NULL, transform(sequence(1, cast(id % 4 AS int) + 1), i ->
        if(i = 3, NULL, named_struct('sku', concat('s', i), 'price', i * 1.5D + id % 3, 'at',
        timestamp_seconds(1700000000 + id * 131 + i))))), if(id % 3 = 0, map('size', cast(id AS int), 'rest', NULL),
        map()), if(id % 7 = 0, NULL, concat_ws(',', 'a', concat('b', id % 2))),
        timestamp_seconds(1700000000 + id * 131)""",
    ),
    # things
    "sensors": (
        "device string, site int, metric string, value double, ok boolean, at timestamp",
        """concat('d-', id % 6), cast(id % 3 AS int), if(id % 2 = 0, 'temp', 'hum'),
        if(id % 17 = 0, double('NaN'), id % 50 * 0.5D), id % 5 <> 0, timestamp_seconds(1700000000 + id * 61)""",
    ),
    # web
    "hits": (
        "url string, visitor string, status int, ms bigint, agent string, ts timestamp",
        """concat('/', element_at(array('home', 'cart', 'item/1', 'item/2', 'pay'), cast(id * 3 % 5 + 1 AS int)),
        if(id % 4 = 0, '?q=1', '')), concat('v', id * id % 23), cast(element_at(array(200, 200, 404, 500),
        cast(id % 4 + 1 AS int)) AS int), id * 37 % 900, if(id % 8 = 0, NULL, 'Mozilla/5.0'),
        timestamp_seconds(1700000000 + id * 43)""",
    ),
    # games
    "plays": (
        "player int, game string, level smallint, points bigint, won boolean, day date, at timestamp",
        """cast(id % 9 AS int), if(id % 3 = 0, 'chess', 'go'), cast(id % 5 AS smallint), id * 31 % 200 - 50, id % 2 = 0,
        date_add(DATE '2023-11-14', cast(id % 3 AS int)), timestamp_seconds(1700000000 + id * 83)""",
    ),
    # flights
    "flights": (
        "carrier string, origin string, dest string, delay int, distance float, cost decimal(10,2), departed timestamp",
        """element_at(array('AA', 'BA', 'LH'), cast(id % 3 + 1 AS int)), element_at(array('JFK', 'LHR', 'FRA', 'XXX'),
        cast(id % 4 + 1 AS int)), element_at(array('LAX', 'TXL'), cast(id % 2 + 1 AS int)),
        if(id % 7 = 0, NULL, cast(id * 13 % 90 - 20 AS int)), cast(id % 30 * 100.5 AS float),
        cast(id * 1.25 AS decimal(10,2)), timestamp_seconds(1700000000 + id * 113)""",
    ),
}
"""Stream -> columns, and how they are made of `id`."""

TIMES = {
    "orders": "ts", "tx": "ts", "refunds": "at", "sensors": "at", "hits": "ts", "plays": "at", "flights": "departed",
}  # fmt: skip

STATIC = {
    "merchants": (
        "parquet",
        "SELECT concat('m', id) AS merchant, element_at(array('eu', 'us'), cast(id % 2 + 1 AS int)) "
        "AS region, id * 1.5D AS fee FROM range(4)",
    ),
    "limits": (
        "parquet",
        "SELECT concat('m', id % 3) AS merchant, id * 2.0D AS low, id * 2.0D + 2 AS high FROM range(6)",
    ),
    "sites": ("csv", "SELECT cast(id AS int) AS site, concat('hall ', id) AS hall, id * 10.0D AS most FROM range(2)"),
    "airports": (
        "parquet",
        "SELECT * FROM VALUES ('JFK', 'US', 'New York'), ('LHR', 'GB', 'London'), ('LAX', 'US', NULL) "
        "AS t(code, country, city)",
    ),
    "watched": (
        "parquet",
        "SELECT * FROM VALUES ('c1', 1), ('c4', 9), ('c4', 3), (NULL, 5), ('c5', NULL), ('zz', 2) AS t(card, least)",
    ),
}
"""Batch table -> format and rows."""

VIEWS = {
    "pos": "SELECT *, amount * 2 AS twice FROM tx WHERE kind = 'pos'",
    "known_pos": "SELECT pos.*, region FROM pos JOIN merchants USING (merchant)",
    "moves": "SELECT card, amount, ts FROM tx UNION ALL SELECT card, -amount, at FROM refunds",
}

_SQL = Path(__file__).with_name("queries.sql").read_text()
SQL = {name: text.strip() for name, text in re.findall(r"^--- (\w+)\n(.*?);$", _SQL, re.MULTILINE | re.DOTALL)}
"""Queries in SQL, by name."""

BATCH = {
    "named_arguments": "SELECT count(*) AS n, window.start FROM tx GROUP BY window(ts, '1 hour', '30 minutes')",
    "interval": "SELECT window(ts, '2 hours', '30 minutes') AS w, max(qty) AS q FROM tx GROUP BY ALL",
    "lasts": "SELECT game, at AS e, p, n, l FROM (SELECT *, row_number() OVER (PARTITION BY game ORDER BY at) AS i, "
    "sum(points) OVER w AS p, count(*) OVER w AS n, min(level) OVER w AS l FROM plays WINDOW w AS (PARTITION BY game "
    "ORDER BY at ROWS BETWEEN 4 PRECEDING AND CURRENT ROW)) WHERE i % 2 = 0",
}
"""The equivalent text for Spark if only a pond accepts the query's text."""


def _hour(column: str = "ts", *more: str) -> object:
    return F.window(column, "1 hour", *more)


FRAMES: dict[str, Callable[[Mapping[str, DataFrame]], DataFrame]] = {
    "df_count": lambda t: t["tx"].groupBy("card", _hour()).count(),
    "df_where": lambda t: (
        t["tx"].where("kind = 'pos'").groupBy(_hour(), "card").agg(F.sum("amount").alias("s")).where("s > 3")
    ),
    "df_hop": lambda t: (
        t["tx"].groupBy("merchant", _hour("ts", "20 minutes", "10 minutes")).agg(F.avg("amount").alias("a"))
    ),
    "df_columns": lambda t: (
        t["tx"]
        .withColumn("size", F.when(F.col("amount") > 4, "big").otherwise("small"))
        .withColumnRenamed("card", "who")
        .groupBy("who", "size", _hour())
        .agg(F.count("*").alias("n"))
    ),
    "df_select": lambda t: (
        t["tx"]
        .select("ts", F.lower("kind").alias("k"), (F.col("amount") * F.col("qty")).alias("x"))
        .groupBy("k", _hour())
        .agg(F.sum("x").alias("s"), F.expr("count(*) FILTER (WHERE x > 0)").alias("n"))
    ),
    "df_after": lambda t: (
        t["tx"]
        .groupBy(_hour().alias("w"), "card")
        .agg(F.max("amount").alias("m"))
        .select("card", F.col("w.end").alias("e"), (F.col("m") + 1).alias("m1"))
        .filter("m1 > 2")
    ),
    "df_window_time": lambda t: (
        t["tx"].groupBy(_hour(), "kind").count().select("kind", F.window_time("window").alias("t"), "count")
    ),
    "df_session": lambda t: (
        t["hits"]
        .where("status <> 500")
        .groupBy("visitor", F.session_window("ts", "5 minutes").alias("w"))
        .agg(F.count("*").alias("n"), F.avg("ms").alias("a"))
        .select("visitor", F.col("w.end").alias("e"), (F.col("n") * 2).alias("twice"), "a")
        .where("twice > 2")
    ),
    "df_session_column": lambda t: (
        t["tx"]
        .withColumn("w", F.session_window("ts", "150 seconds"))
        .where("flagged OR kind = 'web'")
        .groupBy("w", "kind")
        .count()
    ),
    "df_join": lambda t: (
        t["tx"].join(t["merchants"], "merchant").groupBy("region", _hour()).agg(F.sum("amount").alias("s"))
    ),
    "df_broadcast": lambda t: (
        t["tx"].join(F.broadcast(t["merchants"]), "merchant", "left").groupBy("region", _hour()).count()
    ),
    "df_join_filter": lambda t: (
        t["tx"]
        .where("amount > 0")
        .join(t["merchants"].where("fee > 1"), "merchant", "left")
        .groupBy("region", _hour())
        .count()
    ),
    "df_join_condition": lambda t: (
        t["tx"]
        .alias("a")
        .join(t["limits"].alias("b"), F.expr("a.merchant = b.merchant AND amount BETWEEN low AND high"), "left")
        .groupBy("a.merchant", _hour())
        .agg(F.max("high").alias("h"))
    ),
    "df_semi": lambda t: (
        t["tx"].join(t["watched"], "card", "left_semi").groupBy("card", _hour()).agg(F.sum("amount").alias("s"))
    ),
    "df_anti": lambda t: t["tx"].join(t["rows"].where("weight > 1"), "kind", "left_anti").select("id", "kind"),
    "df_isin": lambda t: (
        t["tx"].where(F.col("card").isin(t["watched"].where("least > 2").select("card"))).groupBy(_hour()).count()
    ),
    "df_exists": lambda t: (
        t["tx"]
        .alias("a")
        .where(~t["watched"].alias("b").where(F.col("a.card").outer() == F.col("b.card")).exists())
        .select("id", t["merchants"].select(F.max("fee")).scalar().alias("most"))
    ),
    "df_rows": lambda t: t["tx"].join(t["rows"], "kind").groupBy("weight", _hour()).count(),
    "df_union": lambda t: (
        t["tx"]
        .select("card", "amount", "ts")
        .union(t["refunds"].select("card", -F.col("amount"), "at"))
        .groupBy("card", _hour())
        .agg(F.sum("amount").alias("s"))
    ),
    "df_union_by_name": lambda t: (
        t["tx"]
        .select("card", "ts", "amount")
        .unionByName(t["refunds"].select("amount", "card", F.col("at").alias("ts")))
        .groupBy(_hour(), "card")
        .count()
    ),
    "df_union_self": lambda t: (
        t["hits"].where("status = 500").union(t["hits"].where("ms > 800")).groupBy("url", _hour()).count()
    ),
    "df_udf": lambda t: (
        t["tx"]
        .where("amount IS NOT NULL")
        .groupBy(F.udf(lambda kind, amount: f"{kind}{amount > 3}", "string")("kind", "amount").alias("r"), _hour())
        .count()
    ),
    "df_udf_number": lambda t: (
        t["plays"]
        .groupBy("game", _hour("at"))
        .agg(F.sum(F.udf(lambda a, b: a * b, "bigint")("player", "points")).alias("s"))
    ),
    "df_guarded_udf": lambda t: (
        t["tx"].where("qty <> 0").groupBy("card", _hour()).agg(F.sum(F.udf(lambda a: 12 // a, "int")("qty")).alias("s"))
    ),
    "df_stats": lambda t: (
        t["sensors"]
        .where("NOT isnan(value)")
        .groupBy("site", _hour("at"))
        .agg(F.stddev("value").alias("sd"), F.min("value").alias("lo"))
    ),
    "df_no_key": lambda t: t["hits"].groupBy(_hour()).agg(F.count(F.lit(1)).alias("n"), F.sum("ms").alias("ms")),
    "df_pages": lambda t: (
        t["hits"].withColumn("page", F.split("url", "[?]")[0]).groupBy("page", _hour()).agg(F.avg("ms").alias("a"))
    ),
    "df_games": lambda t: (
        t["plays"]
        .groupBy("player", F.window("at", "3 hours", "1 hour"))
        .agg(F.sum("points").alias("p"), F.count_if("won").alias("wins"))
        .where("p > 0")
    ),
    "df_flights": lambda t: (
        t["flights"].na.fill({"delay": 0}).groupBy("carrier", _hour("departed")).agg(F.avg("delay").alias("d"))
    ),
    "df_drop": lambda t: (
        t["flights"]
        .dropna(subset=["delay"])
        .drop("distance")
        .groupBy("origin", _hour("departed"))
        .agg(F.max("delay").alias("d"))
    ),
    "df_view": lambda t: t["tx"].sparkSession.sql(
        "SELECT card, window(ts, '1 hour') AS w, count(*) AS n FROM {t} GROUP BY ALL", t=t["tx"]
    ),
    "df_grouping_sets": lambda t: (
        t["plays"]
        .withColumn("w", F.window("at", "1 hour"))
        .groupingSets([["w", "game"], ["w", "game", "level"], ["w"]], "w", "game", "level")
        .agg(F.sum("points").alias("p"), F.grouping_id().alias("i"))
    ),
    "df_pivot": lambda t: (
        t["plays"]
        .groupBy(_hour("at"), (F.col("player") % 2).alias("odd"))
        .pivot("game", ["go", "chess", "dame"])
        .agg(F.max("points").alias("m"), F.count("level").alias("n"))
    ),
    "df_pivot_lists": lambda t: (
        t["tx"].groupBy(_hour()).pivot("kind", ["pos", "web"]).agg(F.collect_list("qty"), F.sum("qty"))
    ),
    "df_window_rows": lambda t: t["orders"].select(
        F.window("ts", "20 minutes", "5 minutes"), "customer", F.explode("items").alias("i")
    ),
    "df_session_rows": lambda t: t["hits"].select(F.session_window("ts", "5 minutes").alias("w"), "visitor"),
    "df_stateless": lambda t: (
        t["plays"].where("won").select("player", F.expr("points * 2").alias("p"), F.array("player", "level").alias("a"))
    ),
    "df_stateless_udf": lambda t: (
        t["tx"].where("qty > 0").select("id", F.udf(lambda a: 12 // a, "int")("qty").alias("share"))
    ),
    "df_distinct": lambda t: (
        t["plays"].select("game", "won", "at").distinct().select("game", F.to_json(F.struct("won")).alias("won"))
    ),
    "df_duplicates_below": lambda t: (
        t["plays"].dropDuplicates(["game", "at"]).groupBy("game", _hour("at")).agg(F.count("*").alias("n"))
    ),
    "df_drop_duplicates": lambda t: (
        t["tx"]
        .join(t["merchants"], "merchant")
        .dropDuplicates(["region", "kind"])
        .where("kind <> 'web'")
        .select("region")
    ),
    "df_stateless_union": lambda t: t["tx"].select("card", "ts").union(t["refunds"].select("card", "at")),
    "df_explode": lambda t: (
        t["orders"]
        .select("ts", F.explode("items").alias("item"))
        .groupBy("item.sku", _hour())
        .agg(F.sum("item.price").alias("s"), F.count("item").alias("n"))
    ),
    "df_explode_union": lambda t: (
        t["orders"]
        .select("customer", F.explode(F.split("tags", ",")).alias("tag"))
        .union(t["orders"].where("id > 9").select("customer", F.explode_outer("items.sku")))
    ),
    "df_explode_join": lambda t: (
        t["tx"]
        .join(t["merchants"], "merchant", "left")
        .select("id", F.posexplode(F.array("region", "kind")).alias("place", "what"))
        .where("what IS NOT NULL")
    ),
}
