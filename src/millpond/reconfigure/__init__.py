"""Changes to the queries of a running pond: validated, recorded, and folded into the catalog.

Imports `followers`, `runtime` and the parts below them; knows no Spark. Begin with `changes.py`, then `catalog.py`.
"""
