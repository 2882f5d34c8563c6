"""The test kit: naive twins, judges, test inputs, costs, servers and a simulator. It is not in the wheel.

Imports anything of `millpond`; tests and benchmarks import it as `kit`. Begin with `judges/answers.py`.
"""
