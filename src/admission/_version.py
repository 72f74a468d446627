"""
The version, where modules can have it without the front door.
"""

__version__ = "0.1.0"
