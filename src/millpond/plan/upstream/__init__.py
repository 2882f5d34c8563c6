"""Plans for queries that read other queries: upstream rows as a stream, parameters fed by rows.

Imports `plan/groups` and the parts below `plan`. Begin with `upstream.py`.
"""
