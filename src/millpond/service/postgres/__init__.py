"""A read-only PostgreSQL endpoint of a pond, in a process of its own.

Imports `service/server` and the parts below `service`. Begin with `session.py`; `endpoint.py` starts the process.
"""
