"""Followers of the log that can be rebuilt: the view, the sinks, pruning, and the thread that runs them.

Each follower stores its cursor together with its effect (`log.follower.Follower`). None of them delays an epoch.
"""
