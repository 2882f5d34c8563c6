"""Decodes values of topics without Spark: Protocol Buffers, and schemas from a registry.

Imports `connections` and the vocabulary. Begin with `protobuf.py`.
"""
