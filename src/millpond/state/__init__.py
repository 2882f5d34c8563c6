"""What an instance remembers, as bytes and arrays: keys, cells, segments, deltas, and the ports of stores.

Imports `log` and the vocabulary; knows no query and no plan. Begin with `layout/segments.py`.
"""
