"""
A broker for the tests of applications that use Kafka: in a process of its own,
with throttled clients, a full memory pool and crashes on demand.  Only the names
in this module and the pytest plugin C{admission.kafka.testing.pytestplugin} are
stable; others may move without notice.
"""

from typing import TYPE_CHECKING

from ...lazynames import lazyNames

if TYPE_CHECKING:
    from .brokerprocess import BrokerProcess as BrokerProcess
    from .serverprocess import ServerFailed as ServerFailed

__all__, __getattr__, __dir__ = lazyNames(__name__)
