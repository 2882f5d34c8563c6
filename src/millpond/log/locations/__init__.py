"""Where a pond can be stored: in a folder of this machine, of HDFS, or under a prefix of an object store.

Begin with `address`, which decides which of them an address means. Imports errors and local paths only.
"""
