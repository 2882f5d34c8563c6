"""The values that a task receives, and how they and a pond's files reach a worker.

Imports `kernels` and the parts below it, and no other folder of `runtime`. Begin with `task_values.py`.
"""
