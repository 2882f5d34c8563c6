"""One epoch without Spark: gather events into packets, fold packets into state, emit rows of closed windows.

Imports `kernels` and the parts below it; knows neither Spark nor where a task runs. Begin with `epoch.py`, then
`gather/gather.py` and `fold/fold.py`.
"""
