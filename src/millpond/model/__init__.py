"""Frozen values that describe what a user registers: streams, queries, windows, aggregates, expressions, sinks.

Imports only the vocabulary (`errors`, `version`). Begin with `query.py`.
"""
