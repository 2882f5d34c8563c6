"""Second half of an epoch: merges packets into an instance's state and emits the rows that are due.

Imports every folder of `runtime` except `inspect`. Begin with `fold.py`, then `state.py` and `kinds.py`.
"""
