"""Joins of two streams, and of a stream with keyed tables: matching, and the rows that come out.

Imports `rows` and the folders of `runtime` below it. Begin with `fold_joins.py`.
"""
