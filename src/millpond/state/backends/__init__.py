"""One module for each store behind `state/ports`: LMDB, memory, Redis; each alone imports its client library.

Imports `state/ports` and the folders below it; `testing/conformance.py` says what a store must do. Begin with
`memory.py`.
"""
