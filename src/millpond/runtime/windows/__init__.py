"""Combines slices into windows: which windows close, and how their slices merge.

Imports `packets`, `keys`, `aggregates`, `task` and the parts below `runtime`. Begin with `closing.py`, then
`combine.py`.
"""
