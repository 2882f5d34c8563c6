"""Packets, which a gather sends to instances: their encoding, and how an instance reads them.

Imports `task`, `aggregates` and the parts below `runtime`. Begin with `packet.py`.
"""
