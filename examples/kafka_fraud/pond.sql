-- Card fraud from Kafka to Kafka: eight questions about one topic, alerts in another. Run it with `python run.py BROKER`.
--
-- Where the broker is, the file that MILLPOND_CONNECTIONS names says.

CREATE TABLE payments (card STRING, ts TIMESTAMP, amount DOUBLE, country STRING, declined BOOLEAN)
USING kafka OPTIONS (subscribe 'payments', format 'json', startingOffsets 'earliest', maxOffsetsPerTrigger 1000)
TBLPROPERTIES ('dead.path' = 'out/dead', 'dead.ratio' = '0.1');

-- what every card spends, kept for lookups
CREATE STREAMING TABLE spend TBLPROPERTIES ('serve' = 'true') AS
SELECT card, window(ts, '1 hour', '10 minutes') AS w, count(*) AS payments, sum(amount) AS total, max(amount) AS largest
FROM STREAM payments WATERMARK ts DELAY OF INTERVAL 10 SECONDS GROUP BY ALL;

CREATE STREAMING TABLE burst USING kafka TBLPROPERTIES ('topic' = 'alerts') AS
SELECT card, window(ts, '1 minute') AS w, count(*) AS payments
FROM STREAM payments WATERMARK ts DELAY OF INTERVAL 10 SECONDS GROUP BY ALL HAVING count(*) >= 5;

CREATE STREAMING TABLE expensive USING kafka TBLPROPERTIES ('topic' = 'alerts') AS
SELECT card, window(ts, '10 minutes', '1 minute') AS w, sum(amount) AS total
FROM STREAM payments WATERMARK ts DELAY OF INTERVAL 10 SECONDS GROUP BY ALL HAVING sum(amount) > 4000;

CREATE STREAMING TABLE countries USING kafka TBLPROPERTIES ('topic' = 'alerts') AS
SELECT card, window(ts, '30 minutes') AS w, count(DISTINCT country) AS countries
FROM STREAM payments WATERMARK ts DELAY OF INTERVAL 10 SECONDS GROUP BY ALL HAVING count(DISTINCT country) >= 3;

-- a cent to see whether the card works, then all of it
CREATE STREAMING TABLE tried USING kafka TBLPROPERTIES ('topic' = 'alerts') AS
SELECT card, window(ts, '10 minutes', '1 minute') AS w, min(amount) AS smallest, max(amount) AS largest
FROM STREAM payments WATERMARK ts DELAY OF INTERVAL 10 SECONDS GROUP BY ALL
HAVING min(amount) < 0.05 AND max(amount) > 500;

CREATE STREAMING TABLE guessed USING kafka TBLPROPERTIES ('topic' = 'alerts') AS
SELECT card, window(ts, '5 minutes') AS w, count(*) FILTER (WHERE declined) AS declined
FROM STREAM payments WATERMARK ts DELAY OF INTERVAL 10 SECONDS GROUP BY ALL
HAVING count(*) FILTER (WHERE declined) >= 3;

CREATE STREAMING TABLE spree USING kafka TBLPROPERTIES ('topic' = 'alerts') AS
SELECT card, session_window(ts, '30 seconds') AS w, count(*) AS payments, sum(amount) AS total
FROM STREAM payments WATERMARK ts DELAY OF INTERVAL 10 SECONDS GROUP BY ALL HAVING count(*) >= 6;

CREATE STREAMING TABLE huge USING kafka TBLPROPERTIES ('topic' = 'alerts') AS
SELECT card, ts, amount, country FROM STREAM payments WHERE amount > 3000;
