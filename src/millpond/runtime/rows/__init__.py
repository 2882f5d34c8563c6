"""Computes the result rows of windows: final rows, updates, frames over a key's events, count windows.

Imports `windows`, `event_log`, `functions` and the folders below them. Begin with `window_rows.py`.
"""
