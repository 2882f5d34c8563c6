"""Runs user functions in child processes, so that a failure affects one query and never a worker.

Imports `event_log` and the parts below `runtime`; `host` is the worker's side, `child` the other side,
`wire` the bytes between them, `kinds` how a function is called. The child imports this package, so nothing is imported
here. Begin with `host.py`.
"""
