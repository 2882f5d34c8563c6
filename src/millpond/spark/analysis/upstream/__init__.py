"""Reads plans over the rows of upstream queries: the event time of their rows, and ranks.

Imports `analysis.extract` and what it imports. Begin with `ranks.py`.
"""
