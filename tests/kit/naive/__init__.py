"""Naive twins: each answers with plain loops what Millpond answers with arrays, so that tests can compare the two.

Imports `millpond` and `kit/inputs`. Begin with `queries/windows.py`.
"""
