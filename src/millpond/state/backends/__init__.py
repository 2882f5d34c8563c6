"""The implementations of `state.store`, one client library each; `testing.conformance` checks what all must do."""
