"""Turns an analysed join of two streams into our frozen `Join`.

Imports the modules of `analysis` and what they may import. Begin with `joins.py`.
"""
