"""Joins of two streams, and of a stream with keyed tables: finds matches and computes result rows.

Imports `rows` and the folders of `runtime` below it. Begin with `fold_joins.py`.
"""
