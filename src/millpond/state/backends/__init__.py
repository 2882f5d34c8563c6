"""The stores behind `state/ports`: LMDB, memory, Redis; `kinds.py` is their table.

Only the module of a store imports its client library.

Imports `state/ports` and the folders below it; `testing/conformance.py` tests what a store must do. Begin with
`memory.py`.
"""
