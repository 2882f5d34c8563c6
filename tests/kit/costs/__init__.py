"""Measures what a computation costs in ways that a busy machine does not change: calls, and the CPU time of a thread.

Imports nothing of `millpond`. Begin with `counted_calls.py`.
"""
