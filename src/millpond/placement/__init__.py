"""Decides which instance owns which keys: hash slots, buckets, owners, rebalancing. This package does no I/O.

Imports `log`, `model` and the vocabulary. Begin with `slots.py`, then `moves.py`.
"""
