"""Answers "why does this query emit nothing?" and "what does it cost?" from a pond's folder, beside a running pond.

Imports `control/wiring` and the parts below `control`. Begin with `facts.py`, then `causes.py`.
"""
