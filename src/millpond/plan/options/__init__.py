"""Plans for options of a query: output modes, late sinks, incomplete windows, live parameters, retention.

Imports `plan/groups` and the parts below `plan`. Begin with `output_modes.py`.
"""
