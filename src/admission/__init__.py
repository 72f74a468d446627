"""
The front door: what the owner of a server and the author of a policy begin with.

The other doors are L{admission.interfaces} with all contracts and the values that they pass, L{admission.quotas} with
base classes of policies, L{admission.metrics}, L{admission.units}, L{admission.clock}, L{admission.operations} and
L{admission.garbage}; and, each for one purpose, L{admission.kafka}, L{admission.offline}, L{admission.profiling},
L{admission.recording}, L{admission.status}, L{admission.testing} and L{admission.web}.  What is published there keeps
its meaning, or is renamed once with a note in the news.  Modules behind these doors may move without notice.
"""

from typing import TYPE_CHECKING

from ._version import __version__ as __version__
from .lazynames import lazyNames

if TYPE_CHECKING:
    from .admission import Admission as Admission, wrapFactory as wrapFactory
    from .connection.admitted import AdmittedProtocol as AdmittedProtocol
    from .connection.factory import ConnectionLimits as ConnectionLimits
    from .connection.framings import IntPrefix as IntPrefix, Netstring as Netstring, VarintPrefix as VarintPrefix
    from .connection.unitofwork import WorkRefused as WorkRefused
    from .control import AdmissionControl as AdmissionControl
    from .interfaces import (
        ADMITTED as ADMITTED,
        Decision as Decision,
        IMemoryPool as IMemoryPool,
        IMemoryPoolFactory as IMemoryPoolFactory,
        IMetricsExporterFactory as IMetricsExporterFactory,
        IPurgatory as IPurgatory,
        IPurgatoryFactory as IPurgatoryFactory,
        IQuotaPolicy as IQuotaPolicy,
        IQuotaPolicyFactory as IQuotaPolicyFactory,
        ITransportMutability as ITransportMutability,
        IWaitOrderFactory as IWaitOrderFactory,
        PolicyContext as PolicyContext,
        QuotaEntity as QuotaEntity,
        Request as Request,
        Usage as Usage,
    )
    from .listening.services import wrapPorts as wrapPorts, wrapServices as wrapServices
    from .memorylimit import memoryLimitBytes as memoryLimitBytes
    from .plugins import (
        PolicyError as PolicyError,
        PolicyFactory as PolicyFactory,
        TransportAdapters as TransportAdapters,
        buildPolicy as buildPolicy,
    )
    from .request import ServerRequest as ServerRequest

__all__, __getattr__, __dir__ = lazyNames(
    __name__, "interfaces", "quotas", "metrics", "units", "clock", "operations", "garbage"
)
