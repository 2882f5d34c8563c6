"""Keys: their canonical form and hash, the key dictionary, and signatures (the sets of filters that events pass).

Imports the parts below `state`, and no other folder of it. Begin with `key_dictionary.py`.
"""
