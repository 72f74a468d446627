# -*- test-case-name: tests.unit.kafka.client.test_clientconnection -*-
"""
From a host and a port to a connection that is ready for requests.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from attrs import frozen
from kio.schema.errors import ErrorCode
from twisted.internet.defer import CancelledError, Deferred, TimeoutError, inlineCallbacks
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.error import ConnectError, DNSLookupError
from twisted.internet.interfaces import (
    IOpenSSLClientConnectionCreator,
    IReactorTime,
    IStreamClientEndpoint,
)
from twisted.internet.protocol import Factory

from admission._version import __version__

from ..wire.requests import clientApi
from .clientconnection import MAX_RESPONSE_BYTES, REQUEST_TIMEOUT_SECONDS, ClientConnection
from .errors import BrokerRefused, ClientError, Disconnected, UnsupportedApi
from .sasl import Credentials, authenticate

CONNECT_TIMEOUT_SECONDS = 30.0
"""How long connecting may take, versions and passwords included."""

_NEWEST_API_VERSIONS = 3


@frozen(kw_only=True)
class ConnectionSettings:
    """
    What all connections of a client have in common.

    @ivar clientId: the name that the client gives itself, if any.
    @ivar tls: given a broker's host name, makes the options of a TLS
        connection (L{twisted.internet.ssl.optionsForClientTLS} will do);
        L{None} for plain TCP.
    @ivar credentials: who we are, if the brokers want to know.
    @ivar requestTimeoutSeconds: for how long a response is waited for.
    @ivar connectTimeoutSeconds: how long connecting may take in all.
    @ivar maxResponseBytes: the largest response to read.
    """

    clientId: str | None = "admission"
    tls: Callable[[str], IOpenSSLClientConnectionCreator] | None = None
    credentials: Credentials | None = None
    requestTimeoutSeconds: float = REQUEST_TIMEOUT_SECONDS
    connectTimeoutSeconds: float = CONNECT_TIMEOUT_SECONDS
    maxResponseBytes: int = MAX_RESPONSE_BYTES


#: Makes the endpoint for a broker's host and port.
EndpointMaker = Callable[[str, int], IStreamClientEndpoint]


def endpointsOf(reactor: Any, settings: ConnectionSettings) -> EndpointMaker:
    """
    Endpoints on the network, with TLS if C{settings} say so.
    """

    def endpointFor(host: str, port: int) -> IStreamClientEndpoint:
        endpoint = HostnameEndpoint(reactor, host.encode("idna"), port, timeout=settings.connectTimeoutSeconds)
        return endpoint if settings.tls is None else wrapClientTLS(settings.tls(host), endpoint)

    return endpointFor


@inlineCallbacks
def negotiate(connection: ClientConnection) -> Generator[Deferred[Any], Any, None]:
    """
    Learn what the broker speaks (C{ApiVersions}).

    @return: fails with a L{ClientError} if it does not tell.
    """
    api = clientApi("ApiVersions")
    software = {"client_software_name": "admission", "client_software_version": __version__}
    response = yield connection.requestIn(api, _NEWEST_API_VERSIONS, software)
    if response.error_code == ErrorCode.unsupported_version:
        # Then the body is that of version 0, and may tell what would have been right (KIP-511).
        offered = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
        version = api.newestVersion(*offered.get(api.apiKey, (0, 0)))
        if version is None or version >= _NEWEST_API_VERSIONS:
            raise UnsupportedApi(f"{connection.peer} does not tell what it speaks")
        response = yield connection.requestIn(api, version, software)
    if response.error_code:
        raise BrokerRefused(response.error_code, api.name)
    connection.versions = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}


@inlineCallbacks
def connectTo(
    endpoint: IStreamClientEndpoint, clock: IReactorTime, settings: ConnectionSettings, place: str = "the broker"
) -> Generator[Deferred[Any], Any, ClientConnection]:
    """
    Connect, learn what the broker speaks and tell it who we are.

    @param clock: measures timeouts; monotonic.
    @param place: what to call the broker in errors.
    @return: fires with a connection that is ready for requests; fails with
        a L{ClientError}.  It can be cancelled.
    """
    connection = ClientConnection(
        clock,
        settings.clientId,
        requestTimeoutSeconds=settings.requestTimeoutSeconds,
        maxResponseBytes=settings.maxResponseBytes,
    )
    deadline = clock.seconds() + settings.connectTimeoutSeconds

    def timed(step: Deferred[Any]) -> Deferred[Any]:
        return step.addTimeout(max(deadline - clock.seconds(), 0.0), clock)

    try:
        factory: Any = Factory.forProtocol(lambda: connection)
        factory.noisy = False
        yield timed(endpoint.connect(factory))
        yield timed(negotiate(connection))
        if settings.credentials is not None:
            yield timed(authenticate(connection, settings.credentials))
    except TimeoutError as error:
        connection.close()
        raise Disconnected(f"{place} was not ready within {settings.connectTimeoutSeconds:g} seconds") from error
    except (ConnectError, DNSLookupError) as error:
        raise Disconnected(f"cannot connect to {place}: {error}") from error
    except (ClientError, CancelledError):
        connection.close()
        raise
    except Exception as error:
        connection.close()
        raise Disconnected(f"cannot talk to {place}: {error}") from error
    return connection


def connect(
    reactor: Any, clock: IReactorTime, host: str, port: int, settings: ConnectionSettings | None = None
) -> Deferred[ClientConnection]:
    """
    Connect to one broker on the network; for whoever wants a broker and no
    consumer.

    @param reactor: where to connect.
    @param clock: measures timeouts: a L{admission.clock.MonotonicClock}.
    @return: as L{connectTo}.
    """
    settings = settings or ConnectionSettings()
    return connectTo(endpointsOf(reactor, settings)(host, port), clock, settings, f"{host}:{port}")
