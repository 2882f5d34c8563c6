"""The boundary to Catalyst: its private names, the allow-lists, and the expressions that Spark evaluates for us.

Imports the parts below `spark`, and no other folder of `spark`. Begin with `private_names.py`.
"""
