"""Puts a pond together from a folder and a store's address; the only place that names concrete adapters.

Imports the parts below `control`, and no other folder of `control`. Begin with `stores_and_followers.py`.
"""
