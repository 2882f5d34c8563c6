"""The keys of an instance: their buckets, and compaction of the key dictionary.

Imports `task`, `aggregates` and the parts below `runtime`. Begin with `key_compaction.py`.
"""
