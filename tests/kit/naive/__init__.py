"""Naive twins: each computes with plain loops what Millpond computes with arrays, so that tests can compare both.

Imports `millpond` and `kit/inputs`. Begin with `queries/windows.py`.
"""
