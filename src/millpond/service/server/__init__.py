"""The server process: HTTP routes, access checks, leadership, and the pond behind them.

Imports `service/api` and the parts below `service`. Begin with `app.py`.
"""
