"""
C{admission:} before the description of an endpoint.
"""

from typing import Any

from twisted.internet.interfaces import IStreamServerEndpoint, IStreamServerEndpointStringParser
from twisted.plugin import IPlugin
from zope.interface import implementer


@implementer(IPlugin, IStreamServerEndpointStringParser)
class EndpointParser:
    """
    Imports what it needs when it is used, because every Twisted command may load it.
    """

    prefix = "admission"

    def parseStreamServer(self, reactor: Any, *arguments: str, **keywords: str) -> IStreamServerEndpoint:
        """
        See L{admission.listening.endpoint.protectedEndpoint}.
        """
        from admission.listening.endpoint import protectedEndpoint

        return protectedEndpoint(reactor, arguments, keywords)


endpoint = EndpointParser()
