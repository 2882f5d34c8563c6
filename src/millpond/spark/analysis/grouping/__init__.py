"""Reads special forms of grouping: grouping sets, pivots, and windows that are emitted without an aggregation.

Imports `spark.catalyst` and the model, and nothing else of `analysis`. Begin with `grouping_sets.py`.
"""
