"""Readers of the log that act on committed records: sinks, the served view, pruning, and the thread that runs them.

Imports `runtime` and the parts below it; no epoch waits for a follower, and each stores its cursor with its effect
(`log.follower.Follower`). Begin with `runner.py`.
"""
