"""Inputs of tests: random streams and queries, hostile query texts, small chains of log records.

Imports `millpond`, and no other folder of the kit. Begin with `cases.py`.
"""
