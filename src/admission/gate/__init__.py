"""
Which connection gets memory next, whose request is worked on next, who gives way, and where the memory is.
"""
