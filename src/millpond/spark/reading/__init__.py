"""Builds the one streaming DataFrame that reads the columns all queries need, and follows its progress.

Imports `analysis`, the folders of `spark` below it, and the parts below `spark`.
Begin with `event_source.py`, then `read_frame.py`.
"""
