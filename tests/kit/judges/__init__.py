"""Compares what a pond answers with a naive twin and with DuckDB.

Imports `millpond`, `kit/naive` and `kit/inputs`. Begin with `answers.py`.
"""
