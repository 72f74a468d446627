# -*- test-case-name: tests.contracts.test_wheel -*-
"""
A hierarchical timing wheel behind one timer of the reactor.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from math import ceil, inf
from typing import Any, ClassVar, Final, Protocol

from twisted.internet.error import AlreadyCalled, AlreadyCancelled
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from zope.interface import classImplements

ENTRIES_PER_TURN = 1000
"""
How many entries move to finer slots, and how many expire, before the reactor gets its turn; the rest follows at once.
"""

TURN_SECONDS = 0.005
"""How long entries expire before the reactor gets its turn."""

_REVOLUTIONS = 25
"""
How many times as far as once around a wheel its slots reach.  They are in a dictionary, so that costs nothing, and an
entry moves to finer slots once on its way where it would move up to three times.
"""

_ROUNDING = 2.0**-50
"""
The relative error that a few float operations may add to a time: a call that is due on a tick must not wait for the
next one because of that.
"""

_NEVER: Final = 1 << 62
"""A tick that does not come."""


class TimerEntry(Protocol):
    """
    A link of the list that is one slot of a timing wheel: every entry of a wheel has these attributes, so that no
    further object is needed. Operations do, see L{admission.interfaces.IDelayedOperation}.

    @ivar dueSeconds: when to expire, in seconds of the wheel's clock.
    @ivar previousEntry: set by the wheel, like C{nextEntry}; both are L{None} once it has left.
    """

    dueSeconds: float
    previousEntry: Any
    nextEntry: Any

    def expire(self) -> None:
        """
        Called by the wheel at the entry's time, when it no longer holds the entry.
        """


def _called() -> None:
    """
    Replaces the function of a call that was made.
    """


class WheelCall:
    """
    The result of L{TimingWheel.callLater}.  An invalid time, not a finite number, raises C{ValueError} and changes
    nothing.
    """

    __slots__ = ("_args", "_function", "_wheel", "dueSeconds", "nextEntry", "previousEntry")

    dueSeconds: float
    previousEntry: Any
    nextEntry: Any

    def __init__(self, wheel: TimingWheel, function: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._wheel: TimingWheel | None = wheel
        self._function: Callable[..., object] | None = function
        self._args = args

    def getTime(self) -> float:
        return self.dueSeconds

    def active(self) -> bool:
        return self._wheel is not None

    def cancel(self) -> None:
        wheel = self._wheel or self._refuse()
        wheel.discard(self)
        self._wheel = self._function = None
        self._args = ()

    def reset(self, secondsFromNow: float) -> None:
        wheel = self._wheel or self._refuse()
        wheel.move(self, secondsFromNow)

    def delay(self, secondsLater: float) -> None:
        wheel = self._wheel or self._refuse()
        wheel.move(self, secondsLater, self.dueSeconds)

    def expire(self) -> None:
        function, args = self._function, self._args
        self._wheel, self._function, self._args = None, _called, ()
        assert function is not None
        function(*args)

    def _refuse(self) -> TimingWheel:
        raise AlreadyCancelled if self._function is None else AlreadyCalled

    def __repr__(self) -> str:
        if self._wheel is not None:
            return f"<WheelCall of {self._function!r}, due at {self.dueSeconds:.3f} s>"
        return f"<WheelCall {'cancelled' if self._function is None else 'called'}>"


classImplements(WheelCall, IDelayedCall)


class _Slot:
    """
    The head of a ring of entries that are due in the same stretch of time.

    @ivar widthTicks: how long the stretch is.
    """

    __slots__ = ("nextEntry", "previousEntry", "widthTicks")

    def __init__(self, widthTicks: int) -> None:
        self.widthTicks = widthTicks
        self.previousEntry: Any = self
        self.nextEntry: Any = self

    def __iter__(self) -> Iterator[TimerEntry]:
        """
        The entries; the current one may be removed.
        """
        entry = self.nextEntry
        while entry is not self:
            following = entry.nextEntry
            yield entry
            entry = following

    def isEmpty(self) -> bool:
        return self.nextEntry is self

    def append(self, entry: TimerEntry) -> None:
        last = self.previousEntry
        entry.previousEntry = last
        entry.nextEntry = self
        last.nextEntry = self.previousEntry = entry

    def appendAll(self, other: _Slot) -> None:
        """
        Append all entries of C{other}, which must have some and must not be used afterwards.
        """
        first, last, before = other.nextEntry, other.previousEntry, self.previousEntry
        before.nextEntry, first.previousEntry = first, before
        last.nextEntry, self.previousEntry = self, last
        other.breakRing()

    def breakRing(self) -> None:
        """
        Refer to nothing, itself included, or it would stay in memory until Python looks for garbage.  It must not be
        used afterwards.
        """
        self.previousEntry = self.nextEntry = None


class TimingWheel:
    """
    Any number of timers at the cost of one: setting and cancelling take
    constant time, and the reactor has at most one call to make, for the
    next slot that holds anything.

    Slots of one tick each hold entries due within some revolutions of a wheel of C{size}; later entries go to a wheel
    whose slots are C{size} times as wide, and so on for as many wheels as are needed. When the time of a wide slot
    comes, its entries move to finer ones. A slot is identified by the tick at which it begins, whatever its width, so
    all wheels together are one dictionary, and only slots that have been used are in it.

    Nothing expires early, nor later than one tick and the reactor's own delay after its time. It may be used wherever a
    reactor is used as a clock; it makes L{twisted.internet.task.Clock} fast, too.

    @ivar count: how many entries it holds.
    @ivar seconds: the time of the clock underneath.
    """

    _log: ClassVar[Logger] = Logger()

    def __init__(self, clock: IReactorTime, tickSeconds: float = 0.001, size: int = 20) -> None:
        """
        @param clock: gives the time and the one timer.
        @param tickSeconds: the width of the finest slots.
        @param size: how many slots are as wide as one of the next wheel; at least 2.
        @raise ValueError: if either is invalid.
        """
        if not 0 < tickSeconds < inf:
            raise ValueError(f"a tick must take some time, not {tickSeconds} s")
        if size < 2:
            raise ValueError(f"a wheel needs at least 2 slots, not {size}")
        self.tickSeconds = tickSeconds
        self.size = size
        self.count = 0
        self.seconds: Callable[[], float] = clock.seconds
        self._clock = clock
        # Rounded down when setting and arming, up when looking for due entries: see _ROUNDING.
        self._ticksPerSecond = (1.0 - _ROUNDING) / tickSeconds
        self._armingTickSeconds = (1.0 - _ROUNDING) * tickSeconds
        self._passedTicksPerSecond = (1.0 + 4 * _ROUNDING) / tickSeconds
        # The width of the slots of each wheel, and how many ticks ahead it reaches.
        self._widths = [1]
        self._reaches = [size * _REVOLUTIONS]
        self._slots: dict[int, _Slot] = {}
        self._begins: list[int] = []
        self._due = _Slot(0)
        # The slot that was used last, and the range of ticks for which it is the right one.
        self._slot = self._due
        self._slotBegin = self._slotEnd = 0
        self._call: IDelayedCall | None = None
        self._armedTick = _NEVER

    def callLater(self, delay: float, callable: Callable[..., object], *args: object, **kwargs: object) -> WheelCall:
        """
        Call C{callable} after C{delay} seconds; in the next turn of the
        reactor if that is zero or less.

        @raise ValueError: if C{delay} is not a finite number.
        """
        call = WheelCall(self, partial(callable, **kwargs) if kwargs else callable, args)
        self.add(call, delay)
        return call

    def getDelayedCalls(self) -> Sequence[IDelayedCall]:
        """
        All pending calls, in no particular order.
        """
        return [entry for entry in self._entries() if isinstance(entry, WheelCall)]

    def add(self, entry: TimerEntry, delaySeconds: float, sinceSeconds: float | None = None) -> None:
        """
        Have C{entry} expire after C{delaySeconds}.

        @param entry: in no wheel now.
        @param sinceSeconds: when the delay began; now unless given.
        @raise ValueError: if the delay is not a finite number.
        """
        now = self.seconds()
        due = (now if sinceSeconds is None else sinceSeconds) + delaySeconds
        try:
            tick = ceil(due * self._ticksPerSecond)
        except (OverflowError, ValueError):
            raise ValueError(f"a delay must be a finite number of seconds, not {delaySeconds}") from None
        if self._slotBegin <= tick < self._slotEnd and due > now:
            slot = self._slot
        else:
            nowTick = int(now * self._passedTicksPerSecond)
            # Spelled out, since min and max would take a quarter of the time of all this.
            if due <= now:
                if tick > nowTick:
                    tick = nowTick
            elif tick <= nowTick:
                tick = nowTick + 1
            slot = self._slotFor(tick, nowTick)
            if self._armedTick < nowTick:
                # The timer is late.  If that is because the reactor's clock was set back, it fires now.
                self._arm(nowTick, now)
            elif self._slotBegin < self._armedTick and nowTick < self._armedTick:
                self._arm(self._slotBegin if self._slotBegin > nowTick else nowTick, now)
        entry.dueSeconds = due
        # Inlined from _Slot.append: python -m benchmarks.timers takes 3 % longer with the call.
        last = slot.previousEntry
        entry.previousEntry = last
        entry.nextEntry = slot
        last.nextEntry = slot.previousEntry = entry
        self.count += 1

    def discard(self, entry: TimerEntry) -> bool:
        """
        Cancel C{entry}; no effect if it is not in the wheel any more.  The timer of the reactor stays as it is as long
        as the wheel has entries, and may fire once without any being due.

        @param entry: in this wheel, or in none.
        @return: whether it was in this one.
        """
        after = entry.nextEntry
        if after is None:
            return False
        before = entry.previousEntry
        before.nextEntry = after
        after.previousEntry = before
        entry.previousEntry = entry.nextEntry = None
        self.count -= 1
        if not self.count:
            self._disarm()
        return True

    def move(self, entry: TimerEntry, delaySeconds: float, sinceSeconds: float | None = None) -> None:
        """
        Have C{entry} expire at another time; see L{add}.

        @param entry: in this wheel.
        @raise ValueError: if the delay is not a finite number; the entry stays
            where it is.
        """
        before, after = entry.previousEntry, entry.nextEntry
        before.nextEntry = after
        after.previousEntry = before
        self.count -= 1
        try:
            self.add(entry, delaySeconds, sinceSeconds)
        except BaseException:
            before.nextEntry = after.previousEntry = entry
            self.count += 1
            raise

    def shutdown(self) -> None:
        """
        Cancel all calls and timers, and forget all other entries.
        """
        for entry in self._entries():
            if isinstance(entry, WheelCall):
                entry.cancel()
            else:
                self.discard(entry)

    def _entries(self) -> list[TimerEntry]:
        return [entry for slot in (self._due, *self._slots.values()) for entry in slot]

    def _slotFor(self, tick: int, nowTick: int) -> _Slot:
        """
        The slot for entries due at C{tick}: the further off, the wider.
        """
        aheadTicks = tick - nowTick
        if aheadTicks >= self._reaches[-1]:
            self._extend(aheadTicks)
        widthTicks = self._widths[bisect_right(self._reaches, aheadTicks)]
        begin = tick - tick % widthTicks
        slot = self._slots.get(begin)
        if slot is None:
            slot = self._slots[begin] = _Slot(widthTicks)
            heappush(self._begins, begin)
        elif slot.widthTicks < widthTicks:
            slot.widthTicks = widthTicks
        self._slot = slot
        self._slotBegin = begin
        self._slotEnd = begin + widthTicks
        return slot

    def _extend(self, aheadTicks: int) -> None:
        """
        Add wheels until they reach beyond C{aheadTicks}.
        """
        while aheadTicks >= self._reaches[-1]:
            self._widths.append(self._widths[-1] * self.size)
            self._reaches.append(self._reaches[-1] * self.size)

    def _close(self) -> _Slot:
        """
        Remove the earliest slot, and return it.
        """
        slot = self._slots.pop(heappop(self._begins))
        if slot is self._slot:
            self._forgetSlot()
        return slot

    def _forgetSlot(self) -> None:
        self._slot = self._due
        self._slotBegin = self._slotEnd = 0

    def _arm(self, tick: int, now: float) -> None:
        if self._call is not None:
            self._call.cancel()
        self._armedTick = tick
        self._call = self._clock.callLater(max(tick * self._armingTickSeconds - now, 0.0), self._fired)

    def _disarm(self) -> None:
        """
        The wheel is empty: cancel the timer and remove the empty slots.
        """
        for slot in self._slots.values():
            slot.breakRing()
        self._slots.clear()
        self._begins.clear()
        self._forgetSlot()
        if self._call is not None:
            self._call.cancel()
            self._call = None
            self._armedTick = _NEVER

    def _fired(self) -> None:
        self._call = None
        self._armedTick = _NEVER
        now = self.seconds()
        nowTick = int(now * self._passedTicksPerSecond)
        try:
            self._collect(nowTick)
        finally:
            # Whatever happens: without a timer nothing would expire until somebody adds an entry.
            while self._begins and self._slots[self._begins[0]].isEmpty():
                self._close().breakRing()
            if self._begins:
                self._arm(max(self._begins[0], nowTick), now)
        try:
            self._expireSome()
        finally:
            if not self._due.isEmpty():
                self._arm(nowTick, now)

    def _collect(self, nowTick: int) -> None:
        """
        Collect due entries in one ring, in the order of ticks.
        """
        begins, due = self._begins, self._due
        for _ in range(ENTRIES_PER_TURN):
            if not begins or begins[0] > nowTick:
                return
            begin = begins[0]
            slot = self._slots[begin]
            if slot.isEmpty():
                self._close().breakRing()
            elif slot.widthTicks == 1:
                due.appendAll(self._close())
            else:
                entry = slot.nextEntry
                finer: _Slot | None = due
                try:
                    tick = ceil(entry.dueSeconds * self._ticksPerSecond)
                    if tick > begin:
                        finer = self._slotFor(tick, begin)
                except (TypeError, ValueError, OverflowError):
                    self._log.failure("{entry!r} is dropped, since its time is no number any more", entry=entry)
                    finer = None
                slot.nextEntry = entry.nextEntry
                entry.nextEntry.previousEntry = slot
                if finer is not None:
                    finer.append(entry)
                else:
                    entry.previousEntry = entry.nextEntry = None
                    self.count -= 1

    def _expireSome(self) -> None:
        """
        Expire the collected entries.  Callbacks may add entries, which wait for another turn, and discard others.
        """
        due = self._due
        turnEnds = inf
        for _ in range(ENTRIES_PER_TURN):
            entry = due.nextEntry
            if entry is due:
                return
            now = self.seconds()
            if turnEnds == inf:
                turnEnds = now + TURN_SECONDS
            elif now >= turnEnds:
                return
            if entry.dueSeconds > now:
                # The time was rounded, or the clock has been set back meanwhile.
                self.move(entry, 0.0, entry.dueSeconds)
                continue
            self.discard(entry)
            try:
                entry.expire()
            except Exception:
                self._log.failure("{entry!r} raised when its time was up", entry=entry)


classImplements(TimingWheel, IReactorTime)
