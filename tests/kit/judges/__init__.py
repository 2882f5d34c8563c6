"""Compares the results of a pond with a naive twin and with DuckDB.

Imports `millpond`, `kit/naive` and `kit/inputs`. Begin with `answers.py`.
"""
