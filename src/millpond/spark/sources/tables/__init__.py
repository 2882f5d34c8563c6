"""Provides tables of Delta Lake and Iceberg as streams of Spark, by Python data sources.

Imports `session` and the folders below it. Begin with `table_reader.py`.
"""
