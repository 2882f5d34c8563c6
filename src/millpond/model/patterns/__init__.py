"""Row patterns (`MATCH_RECOGNIZE`): their grammar, and their variables.

Imports `expressions` of the model and `errors`. The window of a pattern is in `model/windows.py`. Begin with
`grammar.py`.
"""
