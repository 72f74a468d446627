"""
Consumers on the network.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random, SystemRandom
from typing import Any

from twisted.internet.interfaces import IOpenSSLClientConnectionCreator

from admission.clock import MonotonicClock

from .connecting import ConnectionSettings, endpointsOf
from .consumer import Consumer
from .consumersettings import ConsumerSettings
from .sasl import Credentials


def makeConsumer(
    reactor: Any,
    settings: ConsumerSettings,
    *,
    tls: Callable[[str], IOpenSSLClientConnectionCreator] | None = None,
    credentials: Credentials | None = None,
) -> Consumer:
    """
    A consumer on the network.

    @param reactor: where everything runs.
    @param tls: given a broker's host name, makes the options of a TLS
        connection (L{twisted.internet.ssl.optionsForClientTLS} will do);
        L{None} for plain TCP.
    @param credentials: who we are, if the brokers want to know.
    """
    endpointFor = endpointsOf(reactor, ConnectionSettings(tls=tls))
    random = Random(SystemRandom().getrandbits(64))
    return Consumer(settings, endpointFor, MonotonicClock(reactor), random, credentials)
