"""Groups queries that can share work, and lists the measures, filters and slices each group keeps.

Imports the parts below `plan`, and no other folder of `plan`. Begin with `build.py`.
"""
