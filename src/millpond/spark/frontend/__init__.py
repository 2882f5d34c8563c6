"""Reads pond files and DataFrames: splits statements, checks them at the gate, and registers streams and queries.

Imports `reading`, the folders of `spark` below it, and the parts below `spark`. Begin with `frontend.py`.
"""
