"""A pond over HTTP: the server with leader and standby, the client, and the terminal verbs that use it.

Imports every part except `cli`. Begin with `server/hosted_pond.py`.
"""
