"""
The whole server in one thread: real connections, gate, quotas, groups, purgatory and log, on a virtual clock, with
transports and a disk in memory, and clients that do what a seed says.
"""
