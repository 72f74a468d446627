# -*- test-case-name: tests.clients.test_broker_for_tests -*-
"""
The fixture C{kafka_broker}, for C{pytest_plugins = ["admission.kafka.testing.pytestplugin"]}.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .brokerprocess import BrokerProcess


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[BrokerProcess]:
    """
    A broker that all tests share; each worker of pytest-xdist has one.
    """
    with BrokerProcess() as broker:
        yield broker
