"""A connection to NATS servers.

Modules:

    connection  The one connection of a process to a NATS server
"""
