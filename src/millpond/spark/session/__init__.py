"""Manages Spark's session, its JVM, jars and settings, and translates the failures that Spark reports.

Imports `catalyst` and the parts below `spark`. Begin with `session.py`.
"""
