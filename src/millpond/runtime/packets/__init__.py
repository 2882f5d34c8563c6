"""Packets: what a gather sends to an instance, and what the instance reads out of them.

Imports `task`, `aggregates` and the parts below `runtime`. Begin with `packet.py`.
"""
