"""Servers that tests start on loopback ports and stop at their end: Kafka, Redis, PostgreSQL, a schema registry.

Imports `millpond`, and no other folder of the kit. Begin with `servers.py`.
"""
