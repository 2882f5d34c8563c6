"""One follower for each kind of sink: files, Kafka, PostgreSQL, Delta Lake, Redis, webhooks, functions.

Imports the modules of `followers` and the parts below it; a client library is imported when its sink is first used.
Begin with `kinds.py`.
"""
