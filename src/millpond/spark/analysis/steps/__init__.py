"""Divides a plan that keeps state several times into steps, each of which is a query over the rows of the step below.

Imports `catalyst` and the model. Begin with `step_boundaries.py`.
"""
