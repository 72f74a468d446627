"""
The default policies, written as a third party would write theirs. A server finds them by their names in descriptions;
their classes are for tests and for policies built on them. Names that are not published here may move without notice.
"""

from typing import TYPE_CHECKING

from admission.lazynames import lazyNames

if TYPE_CHECKING:
    from .bounded import BoundedPool as BoundedPool, buildBounded as buildBounded
    from .clientquotas import ClientBytes as ClientBytes, ConnectionRate as ConnectionRate, RequestTime as RequestTime
    from .producerids import ProducerIds as ProducerIds
    from .purgatory import WheelPurgatory as WheelPurgatory
    from .wheel import TimingWheel as TimingWheel

__all__, __getattr__, __dir__ = lazyNames(__name__)
