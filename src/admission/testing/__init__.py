"""
For the tests of policies and servers: the rules of every policy, as test
methods to inherit, and fakes of everything that a policy meets.  Only the names in
this module are stable; others may move without notice.
"""

from typing import TYPE_CHECKING

from ..lazynames import lazyNames

if TYPE_CHECKING:
    from .contract import Contract as Contract
    from .exportercontract import MetricsExporterContract as MetricsExporterContract
    from .faketransport import FakeTLSTransport as FakeTLSTransport, FakeTransport as FakeTransport
    from .mutabilitycontract import (
        MutableTransport as MutableTransport,
        TransportMutabilityContract as TransportMutabilityContract,
    )
    from .ordercontract import WaitOrderContract as WaitOrderContract
    from .orderedclock import OrderedClock as OrderedClock
    from .poolcontract import (
        FairPoolContract as FairPoolContract,
        MemoryPoolContract as MemoryPoolContract,
        UnboundedPoolContract as UnboundedPoolContract,
    )
    from .purgatorycontract import PurgatoryContract as PurgatoryContract
    from .quotacontract import (
        FixedQuotaPolicyContract as FixedQuotaPolicyContract,
        QuotaPolicyContract as QuotaPolicyContract,
        RequestLifecycleContract as RequestLifecycleContract,
    )
    from .recordingwaiter import RecordingWaiter as RecordingWaiter
    from .scriptedexchange import ScriptedExchange as ScriptedExchange, ScriptedLine as ScriptedLine
    from .scriptedoperation import ScriptedOperation as ScriptedOperation
    from .scriptedpool import ScriptedPool as ScriptedPool
    from .scriptedquota import ScriptedQuota as ScriptedQuota
    from .scriptedthreads import ScriptedThreads as ScriptedThreads
    from .servercontract import AdmittedServerContract as AdmittedServerContract, WatchedPolicy as WatchedPolicy
    from .sharedlimitscontract import SharedLimitsContract as SharedLimitsContract
    from .timerscontract import TimersContract as TimersContract
    from .usageexchangecontract import UsageExchangeContract as UsageExchangeContract

__all__, __getattr__, __dir__ = lazyNames(__name__)
