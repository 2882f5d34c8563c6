CREATE TABLE tx (id BIGINT, card STRING, amount DOUBLE, country STRING, tags ARRAY<STRING>, ts TIMESTAMP)
USING json OPTIONS (path 'in', maxFilesPerTrigger '1');

CREATE STREAMING TABLE spend USING parquet TBLPROPERTIES ('path' = 'out/spend', 'serve' = 'true') AS
SELECT card, window(ts, '10 minutes', '5 minutes') AS w, count(*) AS n, sum(amount) AS total, max(amount) AS most
FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 10 MINUTES GROUP BY ALL;

CREATE STREAMING TABLE spread USING json TBLPROPERTIES ('path' = 'out/spread') AS
SELECT country, window(ts, '30 minutes') AS w, stddev(amount) AS spread, median(amount) AS middle,
  approx_count_distinct(card) AS cards, max_by(card, amount) AS biggest
FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 10 MINUTES GROUP BY ALL;

CREATE STREAMING TABLE visits USING parquet TBLPROPERTIES ('path' = 'out/visits') AS
SELECT card, session_window(ts, '4 minutes') AS s, count(*) AS n
FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 10 MINUTES GROUP BY ALL;

CREATE STREAMING TABLE large USING csv TBLPROPERTIES ('path' = 'out/large') AS
SELECT id, upper(card) AS card, amount * 2 AS twice FROM STREAM tx WHERE amount > 90;

CREATE STREAMING TABLE latest USING parquet TBLPROPERTIES ('path' = 'out/latest', 'emit' = 'update') AS
SELECT card, count(*) AS n FROM STREAM tx WATERMARK ts DELAY OF INTERVAL 10 MINUTES GROUP BY card;

CREATE STREAMING TABLE daily USING parquet TBLPROPERTIES ('path' = 'out/daily') AS
SELECT window(w, '1 hour') AS hour, max(total) AS best FROM STREAM spend GROUP BY ALL;
