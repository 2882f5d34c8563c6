"""Naive twins of whole queries: windows, frames, joins, stateless queries, chains and changes of queries.

Imports `kit/naive` and `kit/inputs`. Begin with `windows.py`.
"""
