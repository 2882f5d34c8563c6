"""The latest row of each key, kept in the pond's store for lookups from outside.

Imports `followers` and the parts below it; the ports of stores are in `state/ports`. Begin with `view.py`.
"""
