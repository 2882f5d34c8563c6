"""The `Pond` that users hold, and all that opens, explains and runs one.

Imports every part except `service` and `cli`. Begin with `pond/pond.py`.
"""
