"""User functions, run in child processes: a failure affects one query, never a worker.

`host` is the worker's side, `child` the other side, `frames` the wire format and `kinds` how a function is called.
The child imports this package, so it imports nothing here.
"""
