"""Reports on state for people and budgets: sizes, costs, sharing, the next window to close.

Imports every other folder of `runtime`; nothing in `runtime` imports it. Begin with `costs.py`.
"""
