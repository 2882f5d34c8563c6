-- A stream: the topic `sales` of Kafka. `connections.json` says where Kafka is.
CREATE TABLE sales (shop STRING, product STRING, amount DOUBLE, ts TIMESTAMP)
USING kafka OPTIONS (subscribe 'sales', format 'json', startingOffsets 'earliest');

-- A query with windows: a row per shop and ten minutes, when no more events are expected. An event may be a minute late.
-- The rows go to Parquet files. 'serve' also keeps the latest row of each shop, for `millpond lookup revenue north`.
CREATE STREAMING TABLE revenue USING parquet TBLPROPERTIES ('path' = 'out/revenue', 'serve' = 'true') AS
SELECT shop, window(ts, '10 minutes') AS w, count(*) AS sales, sum(amount) AS total
FROM STREAM sales WATERMARK ts DELAY OF INTERVAL 1 MINUTE
GROUP BY ALL;

-- A query without windows: a row per event, at once, to the topic `alerts`. `:limit` is a live parameter:
-- `millpond param set limit=500`.
DECLARE VARIABLE limit DOUBLE DEFAULT 100.0;

CREATE STREAMING TABLE large USING kafka TBLPROPERTIES ('topic' = 'alerts') AS
SELECT shop, product, amount, ts FROM STREAM sales WHERE amount > :limit;
