"""The class `Pond` and its jobs: declare streams, check inputs, add and change queries, move buckets.

Imports `control/wiring`, `control/diagnose` and the parts below `control`. Begin with `pond.py`.
"""
