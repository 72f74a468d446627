"""
Overload protection for protocol servers built on Twisted: how much memory
unfinished requests may hold, which connections are read next, where requests
wait, how fast each client may go.

Start with L{admission.interfaces}.
"""

__version__ = "0.1.0"
