"""Checks made before a pond is opened: its input, its folder's queries, and its sinks.

Imports `control/wiring` and the parts below `control`. Begin with `same_queries.py`.
"""
