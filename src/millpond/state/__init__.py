"""The state of an instance as bytes and arrays (keys, cells, segments, deltas), and the ports of stores.

Imports `log` and the vocabulary; knows neither queries nor plans. Begin with `layout/segments.py`.
"""
