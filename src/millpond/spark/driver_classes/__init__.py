"""Millpond's few classes in Java, which run in the driver's JVM, how they get there, and what reads Catalyst's trees.

Imports no other folder of `spark`. Begin with `loading.py`.
"""
