# -*- test-case-name: tests.contracts.test_recordinggate -*-
"""
A gate that records the calls of its connections.
"""

from __future__ import annotations

from attrs import frozen
from twisted.internet.interfaces import IReactorTime

from ..gate import Gate, StalledReader
from ..interfaces import ILease, IMemoryPool, IWaiter, IWaitOrder


@frozen
class Asked:
    """
    One call of a gate.

    @ivar method: the method of L{Gate}.
    @ivar by: the caller; L{None} where the gate is not told.
    @ivar sizeBytes: how much memory was asked for, if any.
    @ivar isGranted: whether it was granted, if it can be; a caller that is
        refused waits.
    """

    method: str
    by: object = None
    sizeBytes: int = 0
    isGranted: bool = True


class RecordingGate(Gate):
    """
    A L{Gate} that records the calls of its connections.  Give
    it a L{ScriptedPool <admission.testing.scriptedpool.ScriptedPool>} to make it refuse.

    @ivar asked: all calls, in the order of the answers; clear it at will.
    """

    def __init__(
        self,
        pool: IMemoryPool,
        clock: IReactorTime,
        memoryOrder: IWaitOrder,
        turnOrder: IWaitOrder,
        maxRequests: int = 500,
    ) -> None:
        super().__init__(pool, clock, memoryOrder, turnOrder, maxRequests)
        self.asked: list[Asked] = []

    def tryAllocate(self, waiter: IWaiter, sizeBytes: int) -> ILease | None:
        lease = super().tryAllocate(waiter, sizeBytes)
        self._note("tryAllocate", waiter, sizeBytes, lease is not None)
        return lease

    def tryBegin(self, waiter: IWaiter) -> bool:
        isGranted = super().tryBegin(waiter)
        self._note("tryBegin", waiter, isGranted=isGranted)
        return isGranted

    def end(self) -> None:
        self._note("end")
        super().end()

    def press(self) -> None:
        self._note("press")
        super().press()

    def forget(self, waiter: IWaiter) -> None:
        self._note("forget", waiter)
        super().forget(waiter)

    def responsesStalled(self, reader: StalledReader, isStalled: bool) -> None:
        """
        See L{Gate.responsesStalled}; a stall is recorded as granted.
        """
        self._note("responsesStalled", reader, isGranted=isStalled)
        super().responsesStalled(reader, isStalled)

    def _note(self, method: str, by: object = None, sizeBytes: int = 0, isGranted: bool = True) -> None:
        self.asked.append(Asked(method, by, sizeBytes, isGranted))
