"""Programs that tests start: forked from a process that has loaded their modules, and joined to one Java machine.

Imports `millpond`, and no other folder of the kit. Begin with `forked_program.py`.
"""
