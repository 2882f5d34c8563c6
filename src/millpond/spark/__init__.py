"""The only folder that imports pyspark: session, analysis of queries, reading, and the driver."""
