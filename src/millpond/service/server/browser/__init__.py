"""The entrance of the web console: which requests of browsers are allowed, and the page to sign in.

Imports `service/api` and the guard. Begin with `access.py`.
"""
