-- The queries of `millpond demo`. {folder} stands for the demo's folder: the demo puts its path in before Spark
-- sees the text, and that is the only thing it changes.
--
-- Ten queries, three groups: those with equal keys share the dictionary of keys, the slices and the measures.

CREATE TABLE flights (
  ts TIMESTAMP,        -- scheduled departure
  carrier STRING, tailnum STRING, origin STRING, dest STRING,
  dep_delay DOUBLE, arr_delay DOUBLE, air_time DOUBLE,   -- minutes; NULL where a flight did not take place
  distance BIGINT
) USING parquet OPTIONS (path '{folder}/flights', maxFilesPerTrigger 2);

-- by carrier

CREATE STREAMING TABLE carrier_hourly USING parquet TBLPROPERTIES ('path' = '{folder}/results/carrier_hourly') AS
SELECT carrier, window(ts, '1 hour') AS w,
       count(*) AS flights, sum(distance) AS miles,
       min(dep_delay) AS best, max(dep_delay) AS worst, avg(dep_delay) AS mean
FROM STREAM flights WATERMARK ts DELAY OF INTERVAL 30 MINUTES
GROUP BY carrier, window(ts, '1 hour');

CREATE STREAMING TABLE carrier_day USING parquet TBLPROPERTIES ('path' = '{folder}/results/carrier_day') AS
SELECT carrier, window(ts, '1 day', '1 hour') AS w,
       count(*) AS flights, count(dep_delay) AS departed, avg(dep_delay) AS mean, stddev(dep_delay) AS spread
FROM STREAM flights WATERMARK ts DELAY OF INTERVAL 30 MINUTES
GROUP BY carrier, window(ts, '1 day', '1 hour');

CREATE STREAMING TABLE carrier_late USING parquet TBLPROPERTIES ('path' = '{folder}/results/carrier_late') AS
SELECT carrier, window(ts, '6 hours', '1 hour') AS w,
       count(*) AS late_flights, max(dep_delay) AS worst, avg(dep_delay) AS mean
FROM STREAM flights WATERMARK ts DELAY OF INTERVAL 30 MINUTES
WHERE dep_delay > 15
GROUP BY carrier, window(ts, '6 hours', '1 hour')
HAVING count(*) >= 10;

-- by airport

CREATE STREAMING TABLE origin_traffic USING parquet TBLPROPERTIES ('path' = '{folder}/results/origin_traffic') AS
SELECT origin, window(ts, '15 minutes') AS w, count(*) AS flights, count(dep_delay) AS departed
FROM STREAM flights WATERMARK ts DELAY OF INTERVAL 30 MINUTES
GROUP BY origin, window(ts, '15 minutes');

CREATE STREAMING TABLE origin_delays USING parquet TBLPROPERTIES ('path' = '{folder}/results/origin_delays') AS
SELECT origin, window(ts, '3 hours', '15 minutes') AS w,
       count(*) AS flights, avg(dep_delay) AS mean, stddev(dep_delay) AS spread, max(dep_delay) AS worst
FROM STREAM flights WATERMARK ts DELAY OF INTERVAL 30 MINUTES
GROUP BY origin, window(ts, '3 hours', '15 minutes')
HAVING avg(dep_delay) > 20;

CREATE STREAMING TABLE origin_long USING parquet TBLPROPERTIES ('path' = '{folder}/results/origin_long') AS
SELECT origin, window(ts, '1 day') AS w,
       count(*) AS flights, sum(air_time) AS minutes, min(air_time) AS fastest, max(distance) AS farthest
FROM STREAM flights WATERMARK ts DELAY OF INTERVAL 30 MINUTES
WHERE distance > 1500 AND dest <> 'HNL'
GROUP BY origin, window(ts, '1 day');

-- by aircraft: numbers for each day and week, and two alerts on the same numbers, which cost no state of their own

CREATE STREAMING TABLE plane_day USING parquet
TBLPROPERTIES ('path' = '{folder}/results/plane_day', 'serve' = 'true') AS
SELECT tailnum, window(ts, '1 day') AS w,
       count(*) AS flights, sum(distance) AS miles, avg(arr_delay) AS mean, max(arr_delay) AS worst
FROM STREAM flights WATERMARK ts DELAY OF INTERVAL 30 MINUTES
GROUP BY tailnum, window(ts, '1 day');

CREATE STREAMING TABLE plane_week USING parquet TBLPROPERTIES ('path' = '{folder}/results/plane_week') AS
SELECT tailnum, window(ts, '7 days', '1 day') AS w,
       count(*) AS flights, sum(distance) AS miles, avg(arr_delay) AS mean, stddev(arr_delay) AS spread
FROM STREAM flights WATERMARK ts DELAY OF INTERVAL 30 MINUTES
GROUP BY tailnum, window(ts, '7 days', '1 day')
HAVING count(*) >= 10;

CREATE STREAMING TABLE plane_delayed USING parquet TBLPROPERTIES ('path' = '{folder}/results/plane_delayed') AS
SELECT tailnum, window(ts, '7 days', '1 day') AS w,
       count(*) AS flights, avg(arr_delay) AS mean, stddev(arr_delay) AS spread, max(arr_delay) AS worst
FROM STREAM flights WATERMARK ts DELAY OF INTERVAL 30 MINUTES
GROUP BY tailnum, window(ts, '7 days', '1 day')
HAVING count(*) >= 5 AND avg(arr_delay) > 45;

CREATE STREAMING TABLE plane_punctual USING parquet TBLPROPERTIES ('path' = '{folder}/results/plane_punctual') AS
SELECT tailnum, window(ts, '7 days', '1 day') AS w,
       count(*) AS flights, sum(distance) AS miles, max(arr_delay) AS worst
FROM STREAM flights WATERMARK ts DELAY OF INTERVAL 30 MINUTES
GROUP BY tailnum, window(ts, '7 days', '1 day')
HAVING count(*) >= 5 AND max(arr_delay) <= 0;
