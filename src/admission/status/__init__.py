"""
The state of a server, as a page, as JSON and for Prometheus.  Only the names in
this module are stable; others may move without notice.
"""

from typing import TYPE_CHECKING

from ..lazynames import lazyNames

if TYPE_CHECKING:
    from .sections import Section as Section
    from .site import statusSite as statusSite

__all__, __getattr__, __dir__ = lazyNames(__name__)
