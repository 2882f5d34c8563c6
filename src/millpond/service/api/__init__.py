"""What server and client share: the messages, the files that say where a server listens.

Imports the parts below `service`, and no other folder of it. Begin with `messages.py`.
"""
