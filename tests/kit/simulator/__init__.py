"""A seeded simulator of the log's protocol: drivers, crashes, lost replies, and the laws that must hold.

Imports `millpond`, and no other folder of the kit. Begin with `simulation.py`.
"""
