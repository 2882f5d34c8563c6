"""Decides where state and work are placed; pure functions over values."""
