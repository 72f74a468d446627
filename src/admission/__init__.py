"""
The front door: every name that a server's owner or a policy's author needs.
Contracts, the values they pass, base classes of policies, the core that serves
requests, and what protects a server that knows nothing of all this.

The names that are here, and in L{admission.kafka}, L{admission.offline},
L{admission.profiling}, L{admission.recording}, L{admission.status} and
L{admission.testing}, keep their meaning, or are renamed once with a note in the
news.  Modules behind these doors may move without notice.
"""

from typing import TYPE_CHECKING

from ._version import __version__ as __version__
from .lazynames import lazyNames

if TYPE_CHECKING:
    from .admission import Admission as Admission, wrapFactory as wrapFactory
    from .clock import (
        MonotonicClock as MonotonicClock,
        useMonotonicTimers as useMonotonicTimers,
        wallSeconds as wallSeconds,
    )
    from .connection.admitted import AdmittedProtocol as AdmittedProtocol
    from .connection.factory import AdmittedFactory as AdmittedFactory, ConnectionLimits as ConnectionLimits
    from .connection.framings import IntPrefix as IntPrefix, Netstring as Netstring, VarintPrefix as VarintPrefix
    from .connection.hangup import HangUpWatch as HangUpWatch
    from .connection.unitofwork import WorkRefused as WorkRefused
    from .control import AdmissionControl as AdmissionControl
    from .garbage import GarbageCollection as GarbageCollection
    from .gate.gate import Gate as Gate, buildGate as buildGate
    from .interfaces import (
        ADMITTED as ADMITTED,
        CONNECTIONS as CONNECTIONS,
        DEFAULT as DEFAULT,
        FRAMES as FRAMES,
        NOTHING as NOTHING,
        Decision as Decision,
        IAccountable as IAccountable,
        IFairPool as IFairPool,
        ILease as ILease,
        IMemoryPool as IMemoryPool,
        IMemoryPoolFactory as IMemoryPoolFactory,
        IMetricsExporter as IMetricsExporter,
        IMetricsExporterFactory as IMetricsExporterFactory,
        IPersistent as IPersistent,
        IPurgatory as IPurgatory,
        IPurgatoryFactory as IPurgatoryFactory,
        IQuotaPolicy as IQuotaPolicy,
        IQuotaPolicyFactory as IQuotaPolicyFactory,
        IRequestLifecycle as IRequestLifecycle,
        IShared as IShared,
        ITransportMutability as ITransportMutability,
        IUsageExchange as IUsageExchange,
        IUsageExchangeFactory as IUsageExchangeFactory,
        IWaitOrder as IWaitOrder,
        IWaitOrderFactory as IWaitOrderFactory,
        Outcome as Outcome,
        PolicyContext as PolicyContext,
        QuotaEntity as QuotaEntity,
        QuotaStatus as QuotaStatus,
        Refusal as Refusal,
        Request as Request,
        Taken as Taken,
        Traits as Traits,
        Usage as Usage,
    )
    from .listening.services import wrapPorts as wrapPorts, wrapServices as wrapServices
    from .memorylimit import memoryLimitBytes as memoryLimitBytes
    from .metrics.rate import SampledTotal as SampledTotal
    from .metrics.registry import SensorRegistry as SensorRegistry
    from .operations import DelayedOperation as DelayedOperation, waitFor as waitFor
    from .plugins import (
        PolicyError as PolicyError,
        PolicyFactory as PolicyFactory,
        TransportAdapters as TransportAdapters,
        buildPolicy as buildPolicy,
    )
    from .quotas.limits import LimitTable as LimitTable
    from .quotas.metering import Buckets as Buckets, Meters as Meters, Windows as Windows
    from .quotas.policy import (
        LifecyclePolicy as LifecyclePolicy,
        MeteredPolicy as MeteredPolicy,
        QuotaPolicy as QuotaPolicy,
    )
    from .request import ServerRequest as ServerRequest
    from .units import (
        formatBytes as formatBytes,
        parseBytes as parseBytes,
        parseRate as parseRate,
        parseSeconds as parseSeconds,
    )

__all__, __getattr__, __dir__ = lazyNames(__name__)
