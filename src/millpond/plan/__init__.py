"""Turns the registered queries into one plan of shared groups, measures and slices. Pure.

Imports `model` and the vocabulary. Begin with `groups/build.py`.
"""
