"""The back-ends of `state.store`, one client library each; `testing.conformance` says what all must do."""
