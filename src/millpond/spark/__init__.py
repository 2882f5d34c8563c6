"""Millpond inside Spark: reads query text and plans, builds the streaming read, drives epochs as jobs.

Imports `reconfigure`, `followers`, `runtime` and the parts below them; the only part that imports pyspark.
Begin with `frontend/frontend.py`, then `driver/driver.py`.
"""
