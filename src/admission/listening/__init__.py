"""
Servers that somebody else starts: by a description, or by a service whose factory nobody sees.
"""
