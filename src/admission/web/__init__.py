"""
Sites of twisted.web: every HTTP request is admitted.
"""

from .protectedsite import protectSite
from .requestkinds import byHeader, byKleinRoutes, byRoutes, digestOf, methodOf

__all__ = ["byHeader", "byKleinRoutes", "byRoutes", "digestOf", "methodOf", "protectSite"]
