-- A stream: JSON files in the folder `sales`. New files are read while the pond runs.
CREATE TABLE sales (shop STRING, product STRING, amount DOUBLE, ts TIMESTAMP)
USING json OPTIONS (path 'sales');

-- A query with windows: a row per shop and ten minutes, when no more events are expected. An event may be a minute late.
-- The rows go to Parquet files. 'serve' also keeps the latest row of each shop, for `millpond lookup revenue north`.
CREATE STREAMING TABLE revenue USING parquet TBLPROPERTIES ('path' = 'out/revenue', 'serve' = 'true') AS
SELECT shop, window(ts, '10 minutes') AS w, count(*) AS sales, sum(amount) AS total
FROM STREAM sales WATERMARK ts DELAY OF INTERVAL 1 MINUTE
GROUP BY ALL;

-- A query without windows: a row per event, at once. `:limit` is a live parameter: `millpond param set limit=500`.
DECLARE VARIABLE limit DOUBLE DEFAULT 100.0;

CREATE STREAMING TABLE large USING json TBLPROPERTIES ('path' = 'out/large') AS
SELECT shop, product, amount, ts FROM STREAM sales WHERE amount > :limit;
