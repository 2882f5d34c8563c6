"""What reads the log and may be lost: the view, the sinks, pruning, and the thread that drives them.

Each follower stores its cursor with its effect (`log.follower.Follower`); none of them ever delays an epoch.
"""
