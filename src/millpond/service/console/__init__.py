"""The web console of the service: pages in a browser, made with NiceGUI and loaded when they are first visited.

Imports `service/server`, `service/terminal/text.py` and NiceGUI. Begin with `site.py`.
"""
