"""Decides which instance owns which keys: hash slots, buckets, owners, rebalancing. Pure.

Imports `log`, `model` and the vocabulary. Begin with `slots.py`, then `moves.py`.
"""
