"""Functions of users, run in child processes: a failure there is one query's, never a worker's.

`host` is this side, `child` the other one, `frames` what goes between them, `kinds` how a function is called.
The child imports this package, so nothing is imported here.
"""
