"""The places where a pond can be: a folder of this machine, or a prefix of an object store.

Begin with `address`, which tells them apart. Imports errors and local paths only.
"""
