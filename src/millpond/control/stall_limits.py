"""How long an epoch may make no progress; a module of its own, because the command line must not import Spark."""

STALLED_SECONDS = 540.0
"""The default time without progress after which the JVM is ended."""
TAKE_OVER_SECONDS = 60.0
"""How much later a standby takes over, so that the leader can record which query is responsible."""
