"""Aggregates that need the events themselves: the log of a group's events, its retention, exact percentiles.

Imports `packets`, `keys`, `aggregates`, `task` and the parts below `runtime`. Begin with `event_log.py`.
"""
