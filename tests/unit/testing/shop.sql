-- What tests/unit/testing/test_trial.py tries; shop.json is this file compiled (tests/spark/test_compile.py checks it).

CREATE TABLE tx (customer STRING, amount DOUBLE, price DECIMAL(10,2), ok BOOLEAN, day DATE, pieces INT, ts TIMESTAMP,
                 note STRING, tags ARRAY<STRING>)
USING json OPTIONS (path 'not/on/this/machine');

CREATE TABLE calls (part INT, off BIGINT, who STRING, ts TIMESTAMP)
USING json OPTIONS (path 'nor/this')
TBLPROPERTIES ('order.partition' = 'part', 'order.offset' = 'off');

CREATE TEMPORARY VIEW rates (customer STRING, rate DOUBLE) USING csv OPTIONS (path 'nor/that');

CREATE STREAMING TABLE spend USING parquet TBLPROPERTIES ('path' = 'out/spend', 'serve' = 'true') AS
SELECT customer, window(ts, '1 hour') AS w, sum(amount) AS total
FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 10 SECONDS
GROUP BY customer, window(ts, '1 hour');

CREATE STREAMING TABLE sales USING noop AS
SELECT day, window(ts, '1 hour', '30 minutes').start AS start, count(*) AS n, sum(price) AS revenue, max(ts) AS newest
FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 10 SECONDS
WHERE ok
GROUP BY day, window(ts, '1 hour', '30 minutes')
HAVING count(*) > 1;

CREATE STREAMING TABLE shares USING noop AS
SELECT window(ts, '1 hour') AS w, sum(amount / pieces) AS shares
FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 10 SECONDS
GROUP BY window(ts, '1 hour');

CREATE STREAMING TABLE counted USING noop AS
SELECT window(ts, '1 hour') AS w, 10 / (count(*) - 2) AS odd
FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 10 SECONDS
GROUP BY window(ts, '1 hour');

CREATE STREAMING TABLE codes USING noop AS
SELECT regexp_extract(note, '([A-Z]+)', 1) AS code, window(ts, '1 hour') AS w, count(*) AS n
FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 10 SECONDS
GROUP BY ALL;

CREATE STREAMING TABLE tagged USING noop AS
SELECT customer, window(ts, '1 hour') AS w, sum(size(tags)) AS n
FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 10 SECONDS
GROUP BY customer, window(ts, '1 hour');

CREATE STREAMING TABLE rated USING noop AS
SELECT customer, window(ts, '1 hour') AS w, sum(amount * rate) AS total
FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 10 SECONDS JOIN rates USING (customer)
GROUP BY customer, window(ts, '1 hour');

CREATE STREAMING TABLE callers USING noop AS
SELECT who, window(ts, '1 minute') AS w, count(*) AS n
FROM STREAM calls WATERMARK ts DELAY OF INTERVAL 10 SECONDS
GROUP BY who, window(ts, '1 minute');
