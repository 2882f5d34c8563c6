-- Queries as people write them, over five kinds of streams. Each begins with `--- name`; `;` ends it.


-- fraud

--- spend
SELECT card, window(ts, '1 hour') AS w, sum(amount) AS s
FROM tx
GROUP BY card, window(ts, '1 hour');

--- spend_all
SELECT card, window(ts, '1 hour', '15 minutes') AS w, sum(amount) AS s, count(*) AS n
FROM tx
GROUP BY ALL;

--- ordinals
SELECT merchant, kind, count(*) AS n, window(ts, '2 hours') AS w
FROM tx
GROUP BY 1, 2, 4;

--- alias
SELECT upper(kind) AS k, window(ts, '2 hours').start AS since, max(amount) AS m
FROM tx
GROUP BY k, window(ts, '2 hours');

--- having
SELECT card, window.end AS e, count(*) AS n
FROM tx
GROUP BY card, window(ts, '1 hour')
HAVING count(*) > 4 AND sum(amount) < 40;

--- having_alias
SELECT card, avg(amount) AS a
FROM tx
GROUP BY card, window(ts, '90 minutes')
HAVING a > 2;

--- cte
WITH big AS (SELECT *
FROM tx
WHERE amount > 3) SELECT merchant, window(ts, '1 hour') AS w, count(*) AS n
FROM big
GROUP BY ALL;

--- cte_chain
WITH a AS (SELECT *, amount * qty AS total
FROM tx), b AS (SELECT *
FROM a
WHERE total > 0) SELECT kind, window(ts, '3 hours') AS w, sum(total) AS t
FROM b
GROUP BY ALL;

--- subselect
SELECT c, window(ts, '1 hour') AS w, min(a2) AS m
FROM (SELECT card AS c, amount / 2 AS a2, ts
FROM tx
WHERE flagged) AS q
GROUP BY ALL;

--- nested
SELECT k, window(ts, '1 hour') AS w, sum(x) AS s
FROM (SELECT k, x + 1 AS x, ts
FROM (SELECT kind AS k, qty AS x, ts
FROM tx)
WHERE x <> 0)
GROUP BY ALL;

--- derived_key
SELECT CASE WHEN amount > 5 THEN 'big' WHEN amount IS NULL THEN 'none' ELSE 'small' END AS size, window(ts, '1 hour') AS w, count(*) AS n
FROM tx
GROUP BY ALL;

--- filtered
SELECT window(ts, '1 hour', '20 minutes') AS w, count(*) FILTER (WHERE kind = 'pos') AS pos, sum(amount) FILTER (WHERE flagged) AS f, count_if(amount > 2) AS big
FROM tx
GROUP BY ALL;

--- conditional
SELECT card, window(ts, '1 hour') AS w, sum(CASE WHEN kind = 'atm' THEN amount ELSE 0 END) AS atm, sum(if(kind = 'web', 1, 0)) AS web
FROM tx
GROUP BY ALL;

--- ratio
SELECT card, window(ts, '2 hours') AS w, sum(amount) / count(*) AS r, round(avg(amount), 1) AS a
FROM tx
GROUP BY ALL;

--- outer_select
SELECT card, n * 10 AS ten, w.start AS s
FROM (SELECT card, window(ts, '1 hour') AS w, count(*) AS n
FROM tx
GROUP BY ALL)
WHERE n > 1;

--- named_arguments
SELECT count(*) AS n, window.start
FROM tx
GROUP BY window(timeColumn => ts, windowDuration => '1 hour', slideDuration => '30 minutes');

--- offset
SELECT window(ts, '1 hour', '20 minutes', '5 minutes') AS w, count(*) AS n
FROM tx
GROUP BY ALL;

--- interval
SELECT window(ts, INTERVAL 2 HOURS, INTERVAL '30' MINUTE) AS w, max(qty) AS q
FROM tx
GROUP BY ALL;

--- window_time
SELECT card, window_time(w) AS at, n
FROM (SELECT card, window(ts, '1 hour', '30 minutes') AS w, count(*) AS n
FROM tx
GROUP BY ALL);

--- no_key
SELECT count(*) AS n, sum(amount) AS s, min(amount) AS lo, max(amount) AS hi
FROM tx
GROUP BY window(ts, '1 day');

--- statistics
SELECT kind, window(ts, '4 hours') AS w, stddev(amount) AS sd, variance(amount) AS v, stddev_pop(amount) AS sp, var_pop(qty) AS vp
FROM tx
GROUP BY ALL;

--- pipe
FROM tx
|> WHERE amount > 1
|> AGGREGATE count(*) AS n, sum(amount) AS s GROUP BY merchant, window(ts, '1 hour');

--- in_list
SELECT merchant, window(ts, '1 hour') AS w, count(*) AS n
FROM tx
WHERE kind IN ('pos', 'web') AND NOT card <=> 'c1'
GROUP BY ALL;

--- between
SELECT card, window(ts, '1 hour') AS w, count(*) AS n
FROM tx
WHERE amount BETWEEN 1 AND 5 OR card IS NULL
GROUP BY ALL;

--- times
SELECT card, window(ts, '1 hour') AS w, min(ts) AS first, max(ts) AS last
FROM tx
GROUP BY ALL;

--- week
SELECT kind, window(ts, '7 days', '1 day') AS w, sum(amount) AS s
FROM tx
GROUP BY ALL;

--- constant
SELECT 'all' AS who, window(ts, '6 hours') AS w, count(amount) AS n
FROM tx
GROUP BY ALL;

--- twice
SELECT card, window(ts, '1 hour') AS w, count(*) AS a, count(1) AS b, sum(amount) AS c, sum(amount) + 1 AS d
FROM tx
GROUP BY ALL;


-- joins with tables

--- join
SELECT region, window(ts, '1 hour') AS w, sum(amount * fee) AS s
FROM tx
JOIN merchants USING (merchant)
GROUP BY ALL;

--- join_on
SELECT m.region AS r, window(t.ts, '1 hour') AS w, count(*) AS n
FROM tx AS t
JOIN merchants AS m ON t.merchant = m.merchant
WHERE t.amount > m.fee
GROUP BY ALL;

--- left_join
SELECT coalesce(region, 'none') AS r, window(ts, '1 hour') AS w, count(*) AS n, count(region) AS known
FROM tx
LEFT JOIN merchants USING (merchant)
GROUP BY ALL;

--- right_join
SELECT region, window(ts, '2 hours') AS w, count(*) AS n
FROM merchants AS m
RIGHT JOIN tx ON m.merchant = tx.merchant
GROUP BY ALL;

--- range_join
SELECT t.merchant AS m, window(ts, '1 hour') AS w, count(*) AS n, max(high) AS h
FROM tx AS t
JOIN limits AS l ON t.merchant = l.merchant AND t.amount >= l.low AND t.amount < l.high
GROUP BY ALL;

--- two_joins
SELECT region, window(ts, '1 hour') AS w, sum(low) AS s
FROM tx
JOIN merchants USING (merchant)
LEFT JOIN limits USING (merchant)
GROUP BY ALL;

--- computed_join
SELECT region, window(ts, '1 hour') AS w, count(*) AS n
FROM tx
JOIN merchants AS m ON concat('m', cast(tx.qty AS string)) = m.merchant
GROUP BY ALL;

--- cross_join
SELECT m.region AS r, window(ts, '4 hours') AS w, sum(fee) AS f
FROM tx
CROSS JOIN merchants AS m
GROUP BY ALL;

--- join_filtered
SELECT window(ts, '1 hour') AS w, count(*) AS n
FROM (SELECT *
FROM tx
WHERE flagged) AS t
JOIN (SELECT *
FROM merchants
WHERE region = 'eu') AS m ON t.merchant = m.merchant
GROUP BY ALL;

--- join_aggregated
SELECT window(ts, '1 hour') AS w, sum(n) AS n
FROM tx
JOIN (SELECT merchant, count(*) AS n
FROM limits
GROUP BY merchant) USING (merchant)
GROUP BY ALL;

--- airports
SELECT a.country AS c, b.city AS to, window(departed, '3 hours') AS w, avg(delay) AS d
FROM flights
JOIN airports AS a ON origin = a.code
LEFT JOIN airports AS b ON dest = b.code
GROUP BY ALL;

--- sites
SELECT hall, window(at, '1 hour') AS w, count(*) AS n, max(most) AS most
FROM sensors
LEFT JOIN sites USING (site)
GROUP BY ALL;


-- unions

--- union
SELECT card, window(ts, '2 hours') AS w, sum(amount) AS balance
FROM (SELECT card, amount, ts
FROM tx
UNION ALL SELECT card, -amount, at
FROM refunds)
GROUP BY ALL;

--- union_self
SELECT what, window(ts, '2 hours') AS w, count(*) AS n, sum(x) AS s
FROM (SELECT 'big' AS what, amount AS x, ts
FROM tx
WHERE amount > 4
UNION ALL SELECT 'flagged', qty, ts
FROM tx
WHERE flagged)
GROUP BY ALL;

--- union_three
SELECT k, window(t, '3 hours') AS w, count(*) AS n
FROM (SELECT card AS k, ts AS t
FROM tx
UNION ALL SELECT card, at
FROM refunds
UNION ALL SELECT device, at
FROM sensors)
GROUP BY ALL;

--- union_joined
SELECT region, window(ts, '2 hours') AS w, sum(amount) AS s
FROM (SELECT merchant, amount, ts
FROM tx
UNION ALL SELECT merchant, -amount, at
FROM refunds)
LEFT JOIN merchants USING (merchant)
GROUP BY ALL;

--- union_of_join
SELECT what, window(ts, '2 hours') AS w, count(*) AS n
FROM (SELECT region AS what, ts
FROM tx
JOIN merchants USING (merchant)
UNION ALL SELECT merchant, at
FROM refunds
WHERE amount > 1)
GROUP BY ALL;


-- views and functions

--- view
SELECT card, window(ts, '1 hour') AS w, sum(twice) AS t
FROM pos
GROUP BY ALL;

--- view_of_join
SELECT region, window(ts, '1 hour') AS w, count(*) AS n
FROM known_pos
GROUP BY ALL;

--- view_of_union
SELECT card, window(ts, '3 hours') AS w, sum(amount) AS s
FROM moves
WHERE card IS NOT NULL
GROUP BY ALL;

--- python
SELECT risk(kind, amount) AS r, window(ts, '2 hours') AS w, count(*) AS n
FROM tx
WHERE amount IS NOT NULL
GROUP BY ALL;

--- python_inside
SELECT card, window(ts, '2 hours') AS w, sum(length(risk(kind, amount)) + 1) AS n
FROM tx
WHERE amount > 0
GROUP BY ALL;

--- sql_function
SELECT card, window(ts, '2 hours') AS w, sum(taxed(amount)) AS t
FROM tx
GROUP BY ALL;


-- things

--- alarms
SELECT device, window(at, '10 minutes', '5 minutes') AS w, max(value) AS hi, count_if(NOT ok) AS bad
FROM sensors
WHERE metric = 'temp'
GROUP BY ALL
HAVING max(value) > 10;

--- nan
SELECT metric, window(at, '1 hour') AS w, max(value) AS m, sum(value) AS s, count_if(isnan(value)) AS n
FROM sensors
GROUP BY ALL;

--- boolean_key
SELECT ok, site % 2 AS half, window(at, '1 hour') AS w, count(*) AS n
FROM sensors
GROUP BY ALL;

--- regex
SELECT regexp_extract(device, 'd-([0-9]+)', 1) AS d, window(at, '1 hour') AS w, avg(value) AS a
FROM sensors
WHERE NOT isnan(value)
GROUP BY ALL;


-- web

--- pages
SELECT split_part(url, '?', 1) AS page, window(ts, '15 minutes') AS w, count(*) AS n, avg(ms) AS a
FROM hits
GROUP BY ALL;

--- errors
SELECT status DIV 100 AS class, window(ts, '30 minutes', '10 minutes') AS w, count(*) AS n
FROM hits
WHERE status >= 400
GROUP BY ALL;

--- share
SELECT window(ts, '1 hour') AS w, count_if(status = 200) / count(*) AS good, sum(ms) AS total
FROM hits
GROUP BY ALL;

--- bots
SELECT agent IS NULL AS bot, window(ts, '1 hour') AS w, count(*) AS n
FROM hits
WHERE url LIKE '/item/%'
GROUP BY ALL;

--- hour
SELECT hour(ts) AS h, window(ts, '1 day') AS w, count(*) AS n
FROM hits
GROUP BY ALL;

--- slow
SELECT greatest(ms, 100) DIV 100 AS bin, window(ts, '1 hour') AS w, count(*) AS n
FROM hits
GROUP BY ALL;


-- games

--- levels
SELECT game, level, window(at, '1 hour') AS w, sum(points) AS p, max(level) AS top
FROM plays
GROUP BY ALL;

--- wins
SELECT player, window(at, '2 hours') AS w, count_if(won) AS wins, sum(if(won, points, -points)) AS score
FROM plays
GROUP BY ALL
HAVING count(*) > 2;

--- days
SELECT day, window(at, '1 day') AS w, min(day) AS first, count(*) AS n
FROM plays
WHERE day > DATE '2023-11-14'
GROUP BY ALL;

--- absolute
SELECT game, window(at, '1 hour') AS w, sum(abs(points)) AS p, sqrt(sum(points * points)) AS q
FROM plays
GROUP BY ALL;


-- flights

--- carriers
SELECT carrier, window(departed, '3 hours', '1 hour') AS w, avg(delay) AS a, count(delay) AS known, count(*) AS n
FROM flights
GROUP BY ALL;

--- routes
SELECT concat(origin, '-', dest) AS route, window(departed, '6 hours') AS w, sum(distance) AS d
FROM flights
GROUP BY ALL;

--- late
SELECT carrier, window(departed, '3 hours') AS w, count_if(delay > 15) AS late, max(delay) - min(delay) AS spread
FROM flights
GROUP BY ALL;

--- decimal
SELECT carrier, window(departed, '3 hours') AS w, sum(cast(cost AS double)) AS c
FROM flights
WHERE cost > 10.5
GROUP BY ALL;


-- relations

--- booleans
SELECT card, window(ts, '1 hour') AS w, bool_and(flagged) AS a, some(flagged) FILTER (WHERE qty > 0) AS s,
  every(if(kind = 'pos', amount > 1, NULL)) AS e, min(flagged) AS least
FROM tx
GROUP BY ALL;

--- correlations
SELECT merchant, window(ts, '1 hour') AS w, corr(amount, qty) AS c, covar_pop(amount, qty) AS p, count(*) AS n,
  covar_samp(amount, qty) FILTER (WHERE kind <> 'web') AS s, corr(amount, if(flagged, id, NULL)) AS few
FROM tx
GROUP BY ALL;

--- regressions
SELECT origin, window(departed, '4 hours') AS w, regr_count(delay, cost) AS n, regr_avgx(delay, cost) AS x,
  regr_avgy(delay, distance) AS y, regr_sxx(delay, distance) AS xx, regr_syy(delay, distance) AS yy,
  regr_sxy(delay, distance) AS xy, regr_slope(delay, distance) AS slope, regr_intercept(delay, distance) AS i,
  regr_r2(delay, distance) AS r2
FROM flights
GROUP BY ALL;

--- regressions_of_nan
SELECT device, window(at, '1 hour') AS w, corr(value, site) AS c, covar_pop(value, unix_seconds(at)) AS p,
  regr_slope(value, unix_seconds(at)) AS s, regr_r2(site, value) AS r, regr_intercept(value, 1D) AS i
FROM sensors
GROUP BY ALL;

--- visitors
SELECT window(ts, '2 hours', '30 minutes') AS w, approx_count_distinct(visitor) AS v,
  approx_count_distinct(url, 0.02) FILTER (WHERE status = 200) AS u, approx_count_distinct(if(ms > 800, ms, NULL)) AS m
FROM hits
GROUP BY ALL;

--- distinct_of_types
SELECT game, window(at, '3 hours') AS w, approx_count_distinct(player, 0.3) AS i, approx_count_distinct(level) AS s,
  approx_count_distinct(points) AS l, approx_count_distinct(won) AS b, approx_count_distinct(day) AS d,
  approx_count_distinct(at) AS t, approx_count_distinct(points / 7) AS x
FROM plays
GROUP BY ALL;

--- distinct_numbers
SELECT carrier, window(departed, '6 hours') AS w, approx_count_distinct(distance, 0.2) AS f,
  approx_count_distinct(cost) AS c, approx_count_distinct(cast(-cost AS decimal(30,4))) AS e
FROM flights
GROUP BY ALL
HAVING approx_count_distinct(cost) > 3;


-- events as events

--- medians
SELECT card, window(ts, '2 hours') AS w, median(amount) AS m, percentile(qty, 0.9) AS p, percentile(amount, array(0.1, 0.5, 1))
  AS ps, percentile_cont(0.25) WITHIN GROUP (ORDER BY amount) AS c, percentile_disc(0.3) WITHIN GROUP (ORDER BY qty) AS d
FROM tx
GROUP BY ALL;

--- sliding_median
SELECT device, window(at, '2 hours', '20 minutes') AS w, median(value) AS m, median(value) FILTER (WHERE ok) AS o,
  percentile_approx(site, array(0.2, 0.8)) AS s, approx_percentile(nanvl(value, -1), 0.5, 1000) AS a
FROM sensors
GROUP BY ALL
HAVING median(value) > 8;

--- decimal_median
SELECT origin, window(departed, '6 hours') AS w, median(cost) AS m, percentile(delay, 0.75) AS d,
  approx_percentile(cost, 0.5) AS a, median(distance) AS f
FROM flights
GROUP BY ALL;

--- distinct
SELECT merchant, window(ts, '90 minutes') AS w, count(DISTINCT card) AS c, count(DISTINCT card, kind) AS b,
  sum(DISTINCT qty) AS s, avg(DISTINCT amount) AS a, count(DISTINCT amount) FILTER (WHERE flagged) AS f, count(*) AS n
FROM tx
GROUP BY ALL;

--- distinct_all
SELECT window(ts, '3 hours', '1 hour') AS w, count(DISTINCT visitor) AS v, count(DISTINCT url, status) AS u
FROM hits
GROUP BY ALL;

--- collected
SELECT kind, window(ts, '2 hours') AS w, collect_set(card) AS cards, collect_list(amount) AS amounts, array_agg(qty) AS q,
  collect_set(flagged) AS f, collect_list(DISTINCT merchant) AS m
FROM tx
GROUP BY ALL;

--- extremes_by
SELECT origin, window(departed, '5 hours') AS w, min_by(carrier, departed) AS a, max_by(cost, departed) AS b,
  max_by(dest, departed, 2) AS c, min_by(departed, departed, 3) AS d, max_by(delay, departed) AS e
FROM flights
GROUP BY ALL;

--- modes
SELECT game, window(at, '4 hours') AS w, mode(level, true) AS l, mode(day, true) AS d, mode(won, true) AS b
FROM plays
GROUP BY ALL;

--- extremes_of_text
SELECT window(ts, '2 hours') AS w, min(url) AS a, max(url) AS b, max(agent) AS c, min(concat(url, visitor)) AS d
FROM hits
GROUP BY ALL;

--- firsts
SELECT card, window(ts, '1 hour') AS w, first(card) AS f, last(card, true) AS l, any_value(card) AS v,
  first_value(amount) IGNORE NULLS IS NULL AS n
FROM tx
GROUP BY ALL;


-- sessions

--- session
SELECT card, session_window(ts, '12 minutes') AS w, count(*) AS n, sum(amount) AS s, max(qty) AS q, avg(id) AS a
FROM tx
GROUP BY ALL;

--- session_touching
SELECT card, session_window.start AS start, session_window.end AS stop, count(*) AS n
FROM tx
GROUP BY card, session_window(ts, '679 seconds');

--- session_of_all
SELECT session_window(ts, '100 seconds') AS w, count(*) AS n, min(ms) AS low, stddev(ms) AS d
FROM hits
WHERE status = 404 OR visitor = 'v1'
GROUP BY ALL;

--- session_having
SELECT visitor, session_window(ts, '5 minutes') AS w, count(*) FILTER (WHERE status = 200) AS fine, count(*) AS n
FROM hits
GROUP BY ALL
HAVING n > 1 AND max(ms) > 400;

--- session_long
SELECT visitor, upper(agent) AS a, session_window(ts, '20 minutes') AS w, count(*) AS n, max(ts) AS latest
FROM hits
GROUP BY ALL;

--- session_joined
SELECT region, session_window(ts, '6 minutes') AS w, count(*) AS n, sum(twice) AS s
FROM known_pos
GROUP BY ALL;

--- session_union
SELECT card, session_window(ts, '10 minutes') AS w, count(*) AS n, sum(amount) AS s
FROM moves
GROUP BY ALL;

--- session_decimal
SELECT origin, session_window(departed, '16 minutes') AS w, sum(cost) AS s, avg(cost) AS a, max(cost) AS m
FROM flights
WHERE delay IS NOT NULL
GROUP BY ALL;


--- session_lengths
SELECT visitor, session_window.end - session_window.start AS length, count(*) AS n
FROM hits
GROUP BY visitor, session_window(ts, '4 minutes');

--- spans_of_time
SELECT card, window(ts, '1 hour') AS w, max(ts) - min(ts) AS span, named_struct('half', (max(ts) - min(ts)) / 2) AS h,
max_by(ts - date_trunc('HOUR', ts), id) AS into_the_hour
FROM tx
GROUP BY ALL
HAVING max(ts) - min(ts) > INTERVAL 20 MINUTES;


-- without windows: each event is answered alone

--- earlier_nested_values
SELECT id, lag(ts - TIMESTAMP '2023-11-15') OVER w AS before, lag(array(id, qty)) OVER w AS pair, lag(kind, 2) OVER w AS k
FROM tx
WINDOW w AS (PARTITION BY merchant ORDER BY ts);

--- intervals
SELECT id, ts - TIMESTAMP '2023-11-15 00:00:00.25' AS since, make_dt_interval(0, 0, qty, 1.5) AS some
FROM tx
WHERE id % 3 = 0;

--- nested_columns_of_a_join
SELECT r.id, o.items, o.attributes, named_struct('first', o.items[0].sku, 'tags', split(o.tags, ',')) AS s,
cast(r.card AS binary) AS bytes, o.ts - TIMESTAMP '2023-11-15' AS since
FROM orders AS o
JOIN refunds AS r ON o.customer = r.card AND r.at BETWEEN o.ts AND o.ts + INTERVAL 10 MINUTES;

--- nested_columns_of_a_left_join
SELECT r.id, o.items, o.attributes
FROM refunds AS r
LEFT JOIN orders AS o ON o.customer = r.card AND o.ts BETWEEN r.at AND r.at + INTERVAL 10 MINUTES;

--- every_row
SELECT * FROM tx;

--- big
SELECT id, amount * 2 AS double_amount, upper(card) AS c
FROM tx
WHERE amount > 4;

--- bigger
SELECT id, qty + 1 AS more, amount > 8 AS huge
FROM tx
WHERE amount > 6;

--- nested_values
SELECT id, split(merchant, 'm') AS parts, named_struct('k', kind, 'a', amount) AS both, map(kind, qty) AS by_kind,
  cast(card AS binary) AS bytes, date_format(ts, 'yyyy-MM-dd HH') AS hour, ts
FROM tx
WHERE kind <> 'atm' AND length(card) = 2;

--- constants
SELECT 1 AS one, 'x' AS x, CAST(NULL AS INT) AS nothing FROM tx WHERE qty = 1;

--- enriched
SELECT id, t.merchant, region, fee * amount AS cost
FROM tx t LEFT JOIN merchants m ON t.merchant = m.merchant
WHERE flagged;

--- with_partner
SELECT id, region FROM tx JOIN merchants USING (merchant) WHERE region = 'eu';

--- all_moves
SELECT card, abs(amount) AS a, ts FROM moves WHERE amount <> 0;

--- costs
SELECT carrier, cost * 2 AS twice, cost, delay FROM flights WHERE cost BETWEEN 5 AND 60.5;


-- an array or a map as rows

--- items
SELECT id, explode(items) AS item FROM orders;

--- items_outer
SELECT id, item.sku, item.price FROM orders LATERAL VIEW OUTER explode(items) t AS item WHERE id < 40;

--- items_inline
SELECT id, sku, price * 2 AS twice FROM orders LATERAL VIEW inline(items) t AS sku, price, at;

--- items_inline_outer
SELECT id, inline_outer(items) FROM orders WHERE id % 2 = 0;

--- items_position
SELECT id, pos, item.sku FROM orders LATERAL VIEW posexplode(items) t AS pos, item WHERE customer <> 'c1';

--- pairs
SELECT id, key, value FROM orders LATERAL VIEW explode(attributes) t AS key, value WHERE value > 3 OR value IS NULL;

--- tags
SELECT tag, window(ts, '1 hour') AS w, count(*) AS n
FROM (SELECT ts, explode(split(tags, ',')) AS tag FROM orders WHERE id > 5)
GROUP BY ALL;

--- items_and_tags
SELECT tag, window(ts, '2 hours') AS w, sum(item.price) AS p
FROM orders LATERAL VIEW explode(items) t AS item LATERAL VIEW OUTER explode(split(tags, ',')) u AS tag
GROUP BY ALL;

--- nested_letters
SELECT id, letter FROM orders LATERAL VIEW explode(items) t AS item LATERAL VIEW explode(split(item.sku, '')) u AS letter
WHERE id < 12;

--- session_own_gap
SELECT card, session_window(ts, CASE WHEN kind = 'pos' THEN '20 minutes' WHEN kind = 'atm' THEN '10 minutes' END) AS w,
  count(*) AS n, sum(amount) AS s
FROM tx
GROUP BY ALL;

--- session_of_days
SELECT session_window(departed, '1 day') AS w, count(*) AS n, max(delay) AS d
FROM flights
WHERE carrier = 'AA'
GROUP BY ALL;

--- session_gap_of_a_column
SELECT game, session_window(at, concat(points, ' seconds')) AS w, count(*) AS n
FROM plays
WHERE player < 4
GROUP BY ALL
HAVING count(*) > 1;
--- shapes
SELECT game, window(at, '3 hours') AS w, skewness(points) AS s, kurtosis(points) AS k, kurtosis(player) AS p,
  skewness(level * level) FILTER (WHERE won) AS l, skewness(1) AS n
FROM plays
GROUP BY ALL;

-- a row per event

--- frame_of_time
SELECT card, ts, amount, sum(amount) OVER (PARTITION BY card ORDER BY ts RANGE BETWEEN INTERVAL 30 MINUTES PRECEDING AND
  CURRENT ROW) AS s, count(*) OVER (PARTITION BY card ORDER BY ts RANGE BETWEEN INTERVAL 2 HOURS PRECEDING AND CURRENT
  ROW) AS n
FROM tx
WHERE qty > 0;

--- frame_above
SELECT *
FROM (SELECT device, at, value, avg(value) OVER (PARTITION BY device, metric ORDER BY at RANGE BETWEEN INTERVAL '10'
  MINUTE PRECEDING AND CURRENT ROW) AS mean, max(ok) OVER (PARTITION BY device, metric ORDER BY at RANGE BETWEEN
  INTERVAL '10' MINUTE PRECEDING AND CURRENT ROW) AS o
FROM sensors)
WHERE value > mean AND NOT isnan(mean);

--- frame_join
SELECT card, region, sum(amount * fee) OVER (PARTITION BY region ORDER BY ts RANGE BETWEEN INTERVAL 15 MINUTES
  PRECEDING AND CURRENT ROW) AS s
FROM tx JOIN merchants USING (merchant);

--- lasts
SELECT game, count_window(at, 5, 2).end AS e, sum(points) AS p, count(*) AS n, min(level) AS l
FROM plays
GROUP BY game, count_window(at, 5, 2);
--- window_rows
SELECT window(ts, '10 minutes') AS w, date_format(window(ts, '10 minutes').start, 'HH:mm') AS at, card
FROM tx WHERE qty > 0;
--- hopping_rows
SELECT id, w.start, w.end FROM (SELECT id, qty, window(ts, '10 minutes', '4 minutes', '1 minute') AS w FROM tx)
WHERE qty > 0 OR w.end > TIMESTAMP '2023-11-15 00:00:00Z';
--- hopping_rows_joined
SELECT url, region, window(ts, '6 minutes', '3 minutes') AS w
FROM (SELECT *, concat('m', ms % 5) AS merchant FROM hits) JOIN merchants USING (merchant);
--- distinct_rows
SELECT DISTINCT card, kind FROM tx WHERE qty > 0;
--- distinct_computed
SELECT k, h FROM (SELECT DISTINCT upper(kind) AS k, date_format(ts, 'HH') AS h, amount > 3 AS large FROM tx) WHERE large;
--- distinct_elements
SELECT DISTINCT item.sku, customer FROM orders LATERAL VIEW explode(items) AS item;
--- distinct_union
SELECT card FROM tx UNION SELECT card FROM refunds;
--- first_of_each
SELECT card, id, upper(kind) AS kind, n FROM (SELECT *, row_number() OVER (PARTITION BY card ORDER BY ts) AS n FROM tx
WHERE qty > 0) WHERE n = 1 AND kind <> 'web';
--- rollup
SELECT window(ts, '1 hour') AS w, merchant, kind, flagged, sum(amount) AS s, count(*) AS n, grouping(kind) AS g,
  grouping_id() AS i
FROM tx GROUP BY window(ts, '1 hour'), ROLLUP(merchant, kind, flagged);
--- cube_above
SELECT card, upper(kind) AS k, date_format(window.start, 'HH:mm') AS at, max(qty) - min(qty) AS r, corr(qty, amount) AS c
FROM tx GROUP BY window(ts, '40 minutes', '20 minutes'), CUBE(card, upper(kind))
HAVING grouping(card) = 1;
--- grouping_sets
SELECT window(ts, '1 hour') AS w, card, qty % 2 AS odd, count(DISTINCT merchant) AS n, collect_list(kind) AS l,
  median(amount) AS m
FROM tx GROUP BY GROUPING SETS ((window(ts, '1 hour'), card), (window(ts, '1 hour'), qty % 2));
--- rollup_sessions
SELECT session_window(ts, '5 minutes') AS w, visitor, status, count(*) AS n, avg(ms) AS a
FROM hits GROUP BY session_window(ts, '5 minutes'), ROLLUP(visitor, status);
--- pivot
SELECT *, w.start AS begun FROM (SELECT window(ts, '1 hour') AS w, qty % 2 AS odd, id % 3 AS part, amount FROM tx)
PIVOT (sum(amount) AS s, count(*) + 1 AS n, count(amount) AS c FOR part IN (0, 1 AS one, 7));


-- questions of each trade, in one text: rules, rankings, funnels, devices, baskets

--- velocity_above
SELECT card, w.start AS since, n, s, s / n AS mean, CASE WHEN n >= 5 AND s > 20 THEN 'review' ELSE 'ok' END AS verdict
FROM (SELECT card, window(ts, '10 minutes') AS w, count(*) AS n, sum(amount) AS s FROM tx GROUP BY ALL);

--- hours_of_tens
SELECT window(w, '1 hour') AS hour, card, max(n) AS busiest, sum(n) AS n
FROM (SELECT card, window(ts, '10 minutes') AS w, count(*) AS n FROM tx GROUP BY ALL)
GROUP BY ALL;

--- histogram
SELECT w, n, count(*) AS cards
FROM (SELECT card, window(ts, '1 hour') AS w, count(*) AS n FROM tx GROUP BY ALL)
GROUP BY w, n;

--- best_merchants
SELECT * FROM (SELECT *, rank() OVER (PARTITION BY w ORDER BY s DESC) AS place
FROM (SELECT merchant, window(ts, '1 hour') AS w, sum(amount) AS s FROM tx GROUP BY ALL))
WHERE place <= 3;

--- best_pages
SELECT page, w, n FROM (SELECT split_part(url, '?', 1) AS page, window(ts, '20 minutes') AS w, count(*) AS n
FROM hits GROUP BY ALL)
QUALIFY dense_rank() OVER (PARTITION BY w ORDER BY n DESC) <= 2;

--- refunded
SELECT t.id, r.id AS refund, t.amount - r.amount AS rest
FROM tx t JOIN refunds r ON t.card = r.card AND r.at BETWEEN t.ts AND t.ts + INTERVAL 20 MINUTES
WHERE t.qty > 0;

--- never_refunded
SELECT t.id, t.amount FROM tx t LEFT ANTI JOIN refunds r
ON t.card = r.card AND r.at >= t.ts AND r.at <= t.ts + INTERVAL 10 MINUTES;

--- refunds_by_hour
SELECT window(t.ts, '1 hour') AS w, t.merchant, count(*) AS n, sum(r.amount) AS back
FROM tx t JOIN refunds r ON t.card = r.card AND r.at BETWEEN t.ts AND t.ts + INTERVAL 20 MINUTES
GROUP BY ALL;

--- funnel
SELECT window(ts, '30 minutes') AS w, count(DISTINCT visitor) AS all_visitors,
  count(DISTINCT visitor) FILTER (WHERE url LIKE '/cart%') AS carts,
  count(DISTINCT if(url LIKE '/pay%', visitor, NULL)) AS payers
FROM hits GROUP BY ALL;

--- percent
SELECT window(ts, '1 hour') AS w, round(100 * count_if(status >= 500) / count(*), 2) AS failed,
  concat(cast(percentile_approx(ms, 0.95) AS string), ' ms') AS p95
FROM hits GROUP BY ALL HAVING count(*) > 10;

--- last_reading
SELECT device, metric, window(at, '30 minutes') AS w, max_by(value, at) AS newest, max(at) AS seen,
  max(struct(at, value)).value AS again
FROM sensors WHERE NOT isnan(value) GROUP BY ALL;

--- deviation
SELECT device, window(at, '1 hour') AS w, max(value) - min(value) AS spread,
  sqrt(sum(power(value, 2)) / count(*) - power(avg(value), 2)) > 5 AS noisy
FROM sensors WHERE NOT isnan(value) GROUP BY ALL;

--- to_json_rows
SELECT to_json(struct(card, window.start AS since, n)) AS value FROM
(SELECT card, window(ts, '1 hour') AS window, count(*) AS n FROM tx GROUP BY ALL);

--- json_struct
SELECT v.q AS q, window(ts, '2 hours') AS w, max(v.a) AS a
FROM (SELECT from_json(to_json(named_struct('q', qty, 'a', amount)), 'q INT, a DOUBLE') AS v, ts FROM tx) GROUP BY ALL;

--- streaks
SELECT player, session_window(at, '15 minutes') AS w, sum(points) AS p, collect_list(struct(at, level)) AS l
FROM plays GROUP BY ALL;

--- leaderboard
SELECT w.end AS until, player, p, row_number() OVER (PARTITION BY w ORDER BY p DESC, player) AS place
FROM (SELECT player, window(at, '1 hour') AS w, sum(points) AS p FROM plays GROUP BY ALL);

--- game_share
SELECT game, window(at, '2 hours') AS w, count(*) FILTER (WHERE won) / count(*) AS rate,
  array_join(sort_array(collect_set(cast(level AS string))), ',') AS levels
FROM plays GROUP BY ALL;

--- delays_by_day
SELECT carrier, date_format(departed, 'EEEE') AS day, window(departed, '1 day') AS w,
  percentile(delay, array(0.5, 0.9)) AS p
FROM flights GROUP BY ALL;

--- route_cube
SELECT window(departed, '6 hours') AS w, origin, dest, sum(cost) AS c, count(*) AS n
FROM flights GROUP BY window(departed, '6 hours'), CUBE(origin, dest);

--- moving_mean
SELECT device, at, avg(value) OVER (PARTITION BY device ORDER BY at ROWS 3 PRECEDING) AS mean FROM sensors
WHERE NOT isnan(value);

--- baskets
SELECT customer, window(ts, '1 hour') AS w, sum(aggregate(items, 0D, (s, i) -> s + coalesce(i.price, 0))) AS total,
  max(size(items)) AS most
FROM orders WHERE items IS NOT NULL GROUP BY ALL;

--- attributes
SELECT attributes['size'] IS NOT NULL AS sized, window(ts, '2 hours') AS w, count(*) AS n, max(attributes['size']) AS m
FROM orders GROUP BY ALL;

--- skus_by_hour
SELECT i.sku, window(ts, '1 hour') AS w, count(DISTINCT customer) AS customers, sum(i.price) AS revenue
FROM orders LATERAL VIEW explode(items) AS i WHERE i IS NOT NULL GROUP BY ALL HAVING revenue > 5;

--- timezone
SELECT date_format(from_utc_timestamp(ts, 'Asia/Tokyo'), 'yyyy-MM-dd') AS day, window(ts, '1 day') AS w, count(*) AS n
FROM hits GROUP BY ALL;

--- bucketed
SELECT width_bucket(amount, 0, 10, 5) AS bucket, window(ts, '1 hour') AS w, count(*) AS n FROM tx
WHERE amount IS NOT NULL GROUP BY ALL;

--- filter_array
SELECT customer, id, filter(items, i -> i.price > 3).sku AS costly FROM orders WHERE size(items) > 1;

--- hours_by_time
SELECT window(window_time(w), '1 hour') AS hour, avg(s) AS a
FROM (SELECT merchant, window(ts, '10 minutes') AS w, sum(amount) AS s FROM tx GROUP BY ALL)
GROUP BY ALL;

--- json_in
SELECT get_json_object(j, '$.kind') AS k, window(ts, '1 hour') AS w, count(*) AS n
FROM (SELECT to_json(named_struct('kind', kind, 'q', qty)) AS j, ts FROM tx) GROUP BY ALL;

--- union_tags
SELECT source, window(t, '1 hour') AS w, count(*) AS n FROM (
  SELECT 'tx' AS source, ts AS t FROM tx UNION ALL SELECT 'refund', at FROM refunds
  UNION ALL SELECT 'hit', ts FROM hits WHERE status >= 500)
GROUP BY ALL;


-- sub-queries over tables

--- left_semi
SELECT card, window(ts, '1 hour') AS w, count(*) AS n, sum(amount) AS s
FROM tx LEFT SEMI JOIN watched ON tx.card = watched.card AND amount > least
GROUP BY ALL;
--- left_anti
SELECT id, card FROM tx LEFT ANTI JOIN watched ON tx.card = watched.card AND least < id;
--- in_table
SELECT merchant, window(ts, '1 hour') AS w, count(*) AS n
FROM tx WHERE card IN (SELECT card FROM watched) AND qty IN (SELECT least FROM watched)
GROUP BY ALL;
--- not_in_table
SELECT id, card FROM tx WHERE card NOT IN (SELECT card FROM watched WHERE card IS NOT NULL);
--- not_in_nothing
SELECT window(ts, '1 hour') AS w, count(*) AS n
FROM tx WHERE card NOT IN (SELECT card FROM watched WHERE least > 99)
GROUP BY ALL;
--- not_in_correlated
SELECT id FROM tx WHERE card NOT IN (SELECT card FROM watched WHERE least = tx.qty);
--- not_in_pairs
SELECT id FROM tx WHERE (card, qty) NOT IN (SELECT card, least FROM watched);
--- in_expressions
SELECT id, card IN (SELECT card FROM watched) AS i, card NOT IN (SELECT card FROM watched) AS n,
  qty NOT IN (SELECT least FROM watched WHERE least > 0) AS q,
  CASE WHEN EXISTS (SELECT 1 FROM watched w WHERE w.card <=> tx.card) THEN 'yes' ELSE 'no' END AS e
FROM tx;
--- exists_table
SELECT window(ts, '1 hour') AS w, count(*) AS n, count_if(EXISTS (SELECT 1 FROM limits WHERE low > amount)) AS m
FROM tx
WHERE EXISTS (SELECT * FROM limits l WHERE l.merchant = tx.merchant AND amount BETWEEN low AND high)
  OR NOT EXISTS (SELECT 1 FROM watched WHERE watched.card = tx.card)
GROUP BY ALL;
--- exists_at_all
SELECT id FROM tx WHERE EXISTS (SELECT 1 FROM watched WHERE least = 9) AND NOT EXISTS (SELECT 1 FROM limits WHERE low > 99);
--- in_branches
WITH known AS (SELECT card FROM watched WHERE least > 1)
SELECT card, window(ts, '2 hours') AS w, count(*) AS n
FROM (SELECT card, ts FROM tx WHERE card IN (SELECT card FROM known)
UNION ALL SELECT card, at FROM refunds WHERE NOT EXISTS (SELECT 1 FROM known WHERE known.card = refunds.card))
GROUP BY ALL;
--- scalar
SELECT card, window(ts, '1 hour') AS w, count(*) AS n, max(amount - (SELECT avg(least) FROM watched)) AS a
FROM tx WHERE amount > (SELECT min(fee) FROM merchants)
GROUP BY ALL;
--- scalar_correlated
SELECT id, (SELECT count(*) FROM watched WHERE watched.card = tx.card) AS n,
  (SELECT max(least) FROM watched WHERE watched.card = tx.card AND least < 9) AS m
FROM tx WHERE id > (SELECT max(least) FROM watched);
--- nested_sub_queries
SELECT id FROM tx WHERE merchant IN (SELECT merchant FROM merchants WHERE fee > (SELECT min(least) FROM watched)
AND merchant IN (SELECT merchant FROM limits));
--- zscore
SELECT * FROM (SELECT id, card, amount, avg(amount) OVER w AS mean, stddev(amount) OVER w AS sd FROM tx
WINDOW w AS (PARTITION BY card ORDER BY ts RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND CURRENT ROW))
WHERE amount > mean + sd;
--- unpivot
SELECT device, name, v, at FROM (SELECT device, value AS a, site * 1.0D AS b, at
FROM sensors WHERE NOT isnan(value)) UNPIVOT (v FOR name IN (a, b));
--- unpivot_agg
SELECT name, window(at, '1 hour') AS w, max(v) AS m
FROM (SELECT device, value AS a, site * 1.0D AS b, at FROM sensors)
UNPIVOT (v FOR name IN (a, b)) GROUP BY ALL;
--- stacked
SELECT name, window(at, '1 hour') AS w, sum(v) AS s FROM sensors
LATERAL VIEW stack(2, 'value', nanvl(value, 0D), 'site', site * 1D) t AS name, v GROUP BY ALL;
--- daily_visitors
SELECT day, count(*) AS visitors FROM (SELECT DISTINCT visitor, window(ts, '1 day') AS day
FROM hits) GROUP BY day;
--- tvf_lateral
SELECT id, t.item.sku AS sku FROM orders, LATERAL explode(items) AS t(item);
--- tvf_lateral_outer
SELECT id, t.pos, t.item.price AS p FROM orders LEFT JOIN LATERAL posexplode(items) AS t(pos, item) ON true;
--- star_except
SELECT * EXCEPT (flagged, qty) FROM tx WHERE kind = 'web';
--- values_join
SELECT label, window(ts, '1 hour') AS w, sum(amount * weight) AS s
FROM tx JOIN (VALUES ('pos', 'shop now', 1L), ('web', 'this time', CAST(2 AS BIGINT))) AS t(kind, label, weight) USING (kind)
GROUP BY ALL;
--- except_table
SELECT card FROM tx EXCEPT SELECT card FROM watched;
--- intersect_table
SELECT card FROM tx INTERSECT SELECT card FROM watched;
--- stacked_rest
SELECT id, a, b FROM tx LATERAL VIEW stack(3, 1, 2, 3, 4) t AS a, b;
--- rank_in_both
SELECT w, game, player, p, rank() OVER (PARTITION BY w, game ORDER BY p DESC) AS in_game,
  p / sum(p) OVER (PARTITION BY w) AS part, lag(p) OVER (PARTITION BY game, player ORDER BY w) AS before
FROM (SELECT game, player, window(at, '1 hour') AS w, sum(points) AS p FROM plays GROUP BY ALL);
--- sums_of_first_ranks
SELECT w, sum(p) AS top, count(*) AS n FROM (SELECT player, window(at, '1 hour') AS w, sum(points) AS p
FROM plays GROUP BY ALL QUALIFY row_number() OVER (PARTITION BY w ORDER BY p DESC, player) <= 3) GROUP BY w;
--- means_of_differences
SELECT card, window(ts, '1 hour') AS w, avg(diff) AS d, count_if(pause > 10) AS n
FROM (SELECT card, ts, amount - lag(amount) OVER (PARTITION BY card ORDER BY ts) AS diff,
  timestampdiff(MINUTE, lag(ts) OVER (PARTITION BY card ORDER BY ts), ts) AS pause FROM tx) GROUP BY ALL;
--- frames_of_frames
SELECT id, s, max(s) OVER (PARTITION BY merchant ORDER BY ts RANGE INTERVAL 1 HOUR PRECEDING) AS m
FROM (SELECT *, sum(amount) OVER (PARTITION BY card ORDER BY ts ROWS 3 PRECEDING) AS s FROM tx);
--- join_of_differences
SELECT a.id, a.diff, b.id AS refund FROM
(SELECT id, card, ts, amount - lag(amount) OVER (PARTITION BY card ORDER BY ts) AS diff FROM tx) AS a
JOIN refunds AS b ON a.card = b.card AND b.at BETWEEN a.ts AND a.ts + INTERVAL 10 MINUTES;
--- distinct_counts
SELECT DISTINCT w, n FROM (SELECT card, window(ts, '1 hour') AS w, count(*) AS n FROM tx GROUP BY ALL);
--- distinct_many
SELECT DISTINCT card FROM (SELECT card, window(ts, '1 hour') AS w, count(*) AS n FROM tx GROUP BY ALL) WHERE n > 2;
--- having_sub_query
SELECT card, window(ts, '1 hour') AS w, count(*) AS n
FROM tx GROUP BY ALL HAVING count(*) > (SELECT min(least) FROM watched)
AND sum(amount) > (SELECT max(high) / 100 FROM limits);
--- sub_query_above
SELECT * FROM (SELECT kind, window(ts, '1 hour') AS w, sum(qty) AS s FROM tx GROUP BY ALL)
WHERE s > (SELECT min(least) FROM watched);
--- value_without_from
SELECT card, window(ts, '1 hour') AS w, sum(amount) AS s, (SELECT 5) AS five FROM tx GROUP BY ALL
HAVING sum(amount) > (SELECT 5);
--- lateral_expressions
SELECT window(ts, '1 hour') AS w, sum(x) AS s, max(y) AS m FROM tx LEFT JOIN LATERAL (SELECT amount * 2 AS x) ON true, LATERAL (SELECT x + 1) AS t(y)
GROUP BY ALL;
--- collated
SELECT kind COLLATE UTF8_BINARY AS kind, window(ts, '1 hour') AS w, count(*) AS n FROM tx
WHERE card COLLATE UTF8_LCASE <> 'C1' GROUP BY ALL;
--- running_totals
SELECT id, sum(qty) OVER (PARTITION BY card ORDER BY ts) AS q, lead(id) OVER (PARTITION BY merchant ORDER BY ts) IS NULL AS last
FROM tx;
--- intersect_windows
SELECT window(ts, '1 hour') AS w, card FROM tx GROUP BY ALL
INTERSECT ALL SELECT window(ts, '1 hour'), card FROM tx WHERE kind = 'web' GROUP BY window(ts, '1 hour'), card;
--- except_windows
SELECT w, n FROM (SELECT window(ts, '1 hour') AS w, card, count(*) AS n FROM tx GROUP BY ALL)
EXCEPT SELECT window(ts, '1 hour'), count(*) FROM tx WHERE kind = 'web' GROUP BY window(ts, '1 hour'), card;
