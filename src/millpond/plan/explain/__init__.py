"""Describes a plan in words and prices: what queries share, and what one more would cost.

Imports `plan/groups` and the parts below `plan`. Begin with `plan_text.py`.
"""
