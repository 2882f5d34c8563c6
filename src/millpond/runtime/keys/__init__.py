"""The keys of an instance: their buckets, and reading stored cells in their current slots.

Imports `task`, `aggregates` and the parts below `runtime`. Begin with `current_slots.py`.
"""
