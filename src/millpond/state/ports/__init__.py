"""The ports (interfaces) of stores: served rows, files shared between hosts, rows of other programs.

Imports the parts below `state`, and no other folder of it. Begin with `store.py`.
"""
