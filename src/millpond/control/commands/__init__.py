"""Verbs of the command line that need more than one call of a pond: run, demo, doctor, explain, dead letters.

Imports every other folder of `control`; only `cli` and `service` import it. Begin with `run.py`.
"""
