"""Matches row patterns (`MATCH_RECOGNIZE`): the automaton of a pattern, and its matches among the events of many keys.

Imports `rows`, `event_log`, `keys` and the parts below `runtime`. Begin with `match_events.py`.
"""
