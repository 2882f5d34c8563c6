"""Decides how much an epoch reads, which partitions are idle, and when background work may run.

Imports the folders of `runtime` up to `moves`. Begin with `epoch_size.py`.
"""
