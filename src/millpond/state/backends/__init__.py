"""The implementations of `state.ports.store`, one client library each; `testing.conformance` checks what all must
do.
"""
