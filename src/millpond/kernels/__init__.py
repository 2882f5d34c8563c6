"""Pure computations on Arrow and NumPy arrays: expressions, decimals, hashing, bins, semi-joins.

Beside them stands what a regular expression costs (`pattern_cost.py`).

Imports `model`, `plan`, `state` and the vocabulary; a kernel knows no epoch, packet or task. Begin with `evaluate.py`.
"""
