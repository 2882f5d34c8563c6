"""Where events come from besides a source: upstream queries, replayed and backfilled events, fed parameters.

Imports `gather` and the folders below it. Begin with `upstream_rows.py`.
"""
