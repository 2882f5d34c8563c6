"""Partial aggregates: computed from events, merged, and turned into results.

Imports `kernels` and the parts below it, and no other folder of `runtime`. Begin with `partials.py`.
"""
