"""The places where a pond can be: a folder of this machine, or a prefix of an object store.

Begin with `address`, which decides which of them an address means. Imports errors and local paths only.
"""
