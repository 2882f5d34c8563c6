-- Flights: the 297 departures from New York JFK on 1 January 2013, scheduled time taken as UTC. Run it in this folder:
--
--     millpond run pond.sql --once --drain
--     millpond explain pond.sql --checkpoint pond.pond
--
-- `millpond demo` does the same with the whole year, ten queries and a check of every row.

CREATE TABLE flights (ts TIMESTAMP, carrier STRING, dest STRING, dep_delay DOUBLE, distance INT)
USING csv OPTIONS (path 'departures', header 'true');

CREATE STREAMING TABLE busy USING json TBLPROPERTIES ('path' = 'out/busy') AS
SELECT window(ts, '3 hours') AS w, count(*) AS flights, sum(distance) AS miles, count(dep_delay) AS departed
FROM STREAM flights WATERMARK ts DELAY OF INTERVAL 30 MINUTES
GROUP BY window(ts, '3 hours');

CREATE STREAMING TABLE carriers USING parquet TBLPROPERTIES ('path' = 'out/carriers', 'serve' = 'true') AS
SELECT carrier, window(ts, '6 hours', '3 hours') AS w, count(*) AS flights, avg(dep_delay) AS mean
FROM STREAM flights WATERMARK ts DELAY OF INTERVAL 30 MINUTES
GROUP BY carrier, window(ts, '6 hours', '3 hours');

CREATE STREAMING TABLE delayed USING json TBLPROPERTIES ('path' = 'out/delayed') AS
SELECT carrier, window(ts, '6 hours', '3 hours') AS w, count(*) AS flights, max(dep_delay) AS worst
FROM STREAM flights WATERMARK ts DELAY OF INTERVAL 30 MINUTES
GROUP BY carrier, window(ts, '6 hours', '3 hours')
HAVING avg(dep_delay) > 15 AND count(*) >= 5;
