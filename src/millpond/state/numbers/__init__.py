"""Exact arithmetic for merging: sums of floats without rounding, moments, 128-bit integers.

Imports the parts below `state`, and no other folder of it. Begin with `exact_sums.py`.
"""
