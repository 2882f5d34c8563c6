"""Migration of state between instances when buckets change their owners.

Imports `joins` and the folders of `runtime` below it. Begin with `move_state.py`.
"""
