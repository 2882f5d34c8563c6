"""Calendars: the offsets of time zones, and the instants at which their days, weeks, months and years begin.

Imports `arrays` and `errors`. The windows are in `model/windows.py`. Begin with `grids.py`.
"""
