"""Runs users' functions in child processes, so that a failure there is one query's and never a worker's.

Imports `event_log` and the parts below `runtime`; `host` is this side, `child` the other, `wire` the bytes
between them, `kinds` how a function is called. The child imports this package, so nothing is imported here.
Begin with `host.py`.
"""
