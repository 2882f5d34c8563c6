"""Changing a live pond without losing or repeating a row."""
