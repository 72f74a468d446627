# -*- test-case-name: tests.unit.kafka.security.test_security -*-
"""
The security plug-ins that Twisted's plug-in system finds.

Any Twisted command that reads an endpoint imports this module, so it imports
nothing heavy and never touches the reactor.
"""

from __future__ import annotations

import inspect
from typing import Any

from attrs import define
from twisted.cred.checkers import ICredentialsChecker
from twisted.cred.credentials import IUsernamePassword
from twisted.cred.strcred import ICheckerFactory
from twisted.internet.interfaces import IStreamServerEndpoint, IStreamServerEndpointStringParser
from twisted.plugin import IPlugin
from zope.interface import implementer

from .credentials import IScramCredentials


@implementer(IPlugin, ICheckerFactory)
@define(eq=False)
class ScramCheckerFactory:
    """
    C{scram:PASSWORDFILE} for C{--auth}.
    """

    authType = "scram"
    authHelp = """
The users of a file, which has hashed passwords and is made by

    admission users set PASSWORDFILE NAME

They log in by SCRAM-SHA-256 and SCRAM-SHA-512, or with their passwords.  The
file is read again when it changes.
"""
    argStringFormat = "PASSWORDFILE"
    credentialInterfaces = (IScramCredentials, IUsernamePassword)

    def generateChecker(self, argstring: str) -> ICredentialsChecker:
        """
        See L{ICheckerFactory.generateChecker}.

        @raise ValueError: with a sentence, if the file cannot be used.
        """
        from .checkers import ScramChecker
        from .passwordfile import PasswordFile

        if not argstring:
            raise ValueError("name a password file, as in scram:users")
        return ScramChecker(PasswordFile(argstring))


@implementer(IPlugin, IStreamServerEndpointStringParser)
@define(eq=False)
class MutualTLSParser:
    """
    C{mtls:}, since Twisted's C{ssl:} cannot ask clients for a certificate.
    """

    prefix = "mtls"
    format = "mtls:PORT:privateKey=FILE:certKey=FILE:caKey=FILE[:interface=ADDRESS][:backlog=N][:required=yes|no]"

    def parseStreamServer(self, reactor: Any, *args: Any, **kwargs: Any) -> IStreamServerEndpoint:
        """
        See L{IStreamServerEndpointStringParser.parseStreamServer} and
        L{listenWithCertificates <admission.kafka.security.mutualtls.listenWithCertificates>}.

        @raise ValueError: with a sentence, if an argument is missing, unknown or makes no sense.
        """
        from .mutualtls import listenWithCertificates

        try:
            bound = inspect.signature(listenWithCertificates).bind(reactor, *args, **kwargs)
        except TypeError as error:
            raise ValueError(f"{error}; expected {self.format}") from error
        endpoint: IStreamServerEndpoint = listenWithCertificates(*bound.args, **bound.kwargs)
        return endpoint
