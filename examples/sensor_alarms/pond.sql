-- Sensor alarms: averages for a chart, and two alarms on the same numbers. Run it in this folder:
--
--     python make_data.py
--     millpond run pond.sql --once --drain
--     millpond lookup minutes boiler --checkpoint pond.pond
--
-- Readings come up to 90 seconds late, which the delay of 2 minutes waits for.

CREATE TABLE readings (sensor STRING, celsius DOUBLE, ts TIMESTAMP)
USING json OPTIONS (path 'readings', maxFilesPerTrigger '1');

CREATE STREAMING TABLE minutes USING parquet TBLPROPERTIES ('path' = 'out/minutes', 'serve' = 'true') AS
SELECT sensor, window(ts, '10 minutes') AS w, count(*) AS readings, avg(celsius) AS mean, max(celsius) AS highest
FROM STREAM readings WATERMARK ts DELAY OF INTERVAL 2 MINUTES
GROUP BY sensor, window(ts, '10 minutes');

-- too hot for five minutes on end
CREATE STREAMING TABLE too_hot USING json TBLPROPERTIES ('path' = 'out/too_hot') AS
SELECT sensor, window(ts, '5 minutes', '1 minute') AS w, min(celsius) AS lowest
FROM STREAM readings WATERMARK ts DELAY OF INTERVAL 2 MINUTES
GROUP BY sensor, window(ts, '5 minutes', '1 minute')
HAVING min(celsius) > 80 AND count(*) >= 10;

-- a sensor that says the same all the time is broken
CREATE STREAMING TABLE stuck USING json TBLPROPERTIES ('path' = 'out/stuck') AS
SELECT sensor, window(ts, '10 minutes') AS w, max(celsius) AS celsius
FROM STREAM readings WATERMARK ts DELAY OF INTERVAL 2 MINUTES
GROUP BY sensor, window(ts, '10 minutes')
HAVING count(*) >= 10 AND stddev(celsius) = 0;
