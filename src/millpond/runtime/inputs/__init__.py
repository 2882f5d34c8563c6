"""Provides input that is not read from a source: upstream rows, replayed and backfilled events, fed parameters.

Imports `gather` and the folders below it. Begin with `upstream_rows.py`.
"""
