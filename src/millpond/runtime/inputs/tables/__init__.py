"""Reads tables of Delta Lake and Iceberg as streams: the rows that are appended to them, by version.

Imports nothing else of `runtime`. Begin with `table_log.py`.
"""
