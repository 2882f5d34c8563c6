"""The edge to Catalyst: its private names in one place, the allow-list, expressions that Spark evaluates for us.

Imports the parts below `spark`, and no other folder of `spark`. Begin with `private_names.py`.
"""
