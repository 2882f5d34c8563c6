"""Spark's session, its Java machine, jars, settings, and the failures it reports.

Imports `catalyst` and the parts below `spark`. Begin with `session.py`.
"""
