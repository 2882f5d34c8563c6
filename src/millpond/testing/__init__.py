"""The kit that is shipped for tests; nothing imports it."""
