"""Servers that tests start on the loopback and that end with the test: Kafka, Redis, PostgreSQL, a schema registry.

Imports `millpond`, and no other folder of the kit. Begin with `servers.py`.
"""
