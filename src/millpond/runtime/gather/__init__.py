"""First half of an epoch: filters the events of a source partition and pre-aggregates them into packets.

Imports the folders of `runtime` up to `joins`. Begin with `gather.py`.
"""
