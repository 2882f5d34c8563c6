"""The log of a pond: numbered records, each created once and never changed, and the manifest folded from them.

Imports only the vocabulary (`errors`, `ids`, `faults`); offsets, specs and sections are opaque here. Begin with
`port.py`, then `records.py` and `protocol.py`.
"""
