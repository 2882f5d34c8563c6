"""Keys: their canonical form and hash, the dictionary that numbers them, the sets of filters they pass.

Imports the parts below `state`, and no other folder of it. Begin with `key_dictionary.py`.
"""
