"""Turns an analysed Catalyst plan into our frozen queries, or refuses it with the position in the text.

Imports `sources`, `session`, `catalyst` and the parts below `spark`. Begin with `extract.py`.
"""
