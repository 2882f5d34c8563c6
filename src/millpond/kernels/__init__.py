"""Pure computations on Arrow and NumPy arrays: expressions, decimals, hashing, bins, semi-joins.

`regex_cost.py` estimates the cost of regular expressions.

Imports `model`, `plan`, `state` and the vocabulary; a kernel knows no epoch, packet or task. Begin with `evaluate.py`.
"""
