"""The class `Pond` and its parts.

Imports `control/wiring`, `control/checks`, `control/diagnose` and the parts below `control`. Begin with `pond.py`.
"""
