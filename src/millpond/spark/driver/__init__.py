"""Drives epochs as micro-batches of one streaming query: plan, run, commit, and replace the query when inputs change.

Imports `reading`, the folders of `spark` below it, and the parts below `spark`.
Begin with `epoch_run.py`, then `driver.py`.
"""
