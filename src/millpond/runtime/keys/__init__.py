"""Where an instance keeps its keys: their buckets, and compaction of its key dictionary.

Imports `task`, `aggregates` and the parts below `runtime`. Begin with `key_compaction.py`.
"""
