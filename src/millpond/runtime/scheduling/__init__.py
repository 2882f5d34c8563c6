"""Decides about epochs: how much to read, which partitions are idle, when background work may run.

Imports the folders of `runtime` up to `moves`. Begin with `epoch_size.py`.
"""
