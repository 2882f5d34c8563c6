"""The layout of state as arrays and bytes: cells, segments, event logs, bin counts, deltas.

Imports `state/keys`, `state/numbers` and `state/ports`. Begin with `segments.py`.
"""
