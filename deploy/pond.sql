-- The pond of the examples: orders from Kafka, alerts to Kafka, and the latest hours for lookups.

CREATE TABLE orders (customer STRING, ts TIMESTAMP, amount DOUBLE)
USING kafka OPTIONS (subscribe 'orders', format 'json', startingOffsets 'earliest', maxOffsetsPerTrigger 500000);

CREATE STREAMING TABLE spend TBLPROPERTIES ('serve' = 'true') AS
SELECT customer, window(ts, '1 hour', '10 minutes') AS w, count(*) AS orders, sum(amount) AS total
FROM STREAM orders WATERMARK ts DELAY OF INTERVAL 10 SECONDS GROUP BY ALL;

CREATE STREAMING TABLE large USING kafka TBLPROPERTIES ('topic' = 'alerts') AS
SELECT customer, ts, amount FROM STREAM orders WHERE amount > 1000;
