"""Describes plans as text: what queries share, and what one more query would cost.

Imports `plan/groups` and the parts below `plan`. Begin with `plan_text.py`.
"""
