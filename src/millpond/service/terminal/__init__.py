"""The terminal verbs that send requests to a running server, and the text they print.

Imports `service/api`, and `service/server` only to start one. Begin with `commands.py`.
"""
