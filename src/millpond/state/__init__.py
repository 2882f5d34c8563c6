"""The stored state of a pond: segments, keys, the event log, and the key-value store of served rows."""
