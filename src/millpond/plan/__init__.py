"""Turns the registered queries into one plan of shared groups, measures and slices. This package does no I/O.

Imports `model` and the vocabulary. Begin with `groups/build.py`.
"""
