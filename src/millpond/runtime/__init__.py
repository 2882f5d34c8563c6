"""How an epoch runs: Arrow in, Arrow out, no Spark."""
