"""
Sites of twisted.web: every HTTP request is admitted. Names that are not published here may move without notice.
"""

from typing import TYPE_CHECKING

from ..lazynames import lazyNames

if TYPE_CHECKING:
    from .protectedsite import protectSite as protectSite
    from .protectedwebsockets import protectWebSockets as protectWebSockets
    from .requestkinds import (
        byHeader as byHeader,
        byKleinRoutes as byKleinRoutes,
        byRoutes as byRoutes,
        digestOf as digestOf,
        methodOf as methodOf,
    )

__all__, __getattr__, __dir__ = lazyNames(__name__)
