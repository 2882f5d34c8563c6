"""Provides each kind of source and batch table as a DataFrame: files, Kafka and its formats, Redis, served rows.

Imports `session`, `catalyst` and the parts below `spark`. Begin with `batch_table_reader.py`, then `kafka.py`.
"""
