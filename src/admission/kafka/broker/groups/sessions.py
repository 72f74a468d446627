# -*- test-case-name: tests.unit.kafka.broker.groups.test_member -*-
"""
Who has to be heard of by when.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import TYPE_CHECKING, Any

from admission.interfaces import IPurgatory
from admission.operations import DelayedOperation

if TYPE_CHECKING:
    from .member import Participant


class Session(DelayedOperation):
    """
    The time within which one participant of a group has to be heard of.

    Hearing of it only moves the deadline.  The operation in the purgatory stays
    as it is and, when its time comes, waits for what is left: a heartbeat
    costs next to nothing, however many members there are.

    @ivar deadlineSeconds: when the participant has been silent for too long.
    """

    __slots__ = (
        "_expired",
        "_firesSeconds",
        "_heldUntilSeconds",
        "_key",
        "_participant",
        "_purgatory",
        "_seconds",
        "deadlineSeconds",
    )

    def __init__(
        self,
        purgatory: IPurgatory,
        seconds: Callable[[], float],
        key: Hashable,
        participant: Participant,
        expired: Callable[[], object],
    ) -> None:
        """
        @param purgatory: where it waits.
        @param seconds: the monotonic clock that the purgatory goes by.
        @param key: what under.
        @param expired: called when the participant has been silent for too long.
        """
        super().__init__(0.0)
        self.deadlineSeconds = 0.0
        self._purgatory = purgatory
        self._seconds = seconds
        self._key = key
        self._participant = participant
        self._expired = expired
        self._heldUntilSeconds = 0.0
        # When the timer in the purgatory fires, whatever the deadline has become since.
        self._firesSeconds = 0.0

    def start(self, delaySeconds: float) -> None:
        """
        The participant has to be heard of within C{delaySeconds} from now.
        """
        deadlineSeconds = self._seconds() + delaySeconds
        self.deadlineSeconds = deadlineSeconds
        if self.watcher is None:
            self._park(delaySeconds)
        elif self._firesSeconds > deadlineSeconds:
            self.cancel()
            self._park(delaySeconds)

    def hold(self, delaySeconds: float) -> None:
        """
        The participant cannot be heard of for C{delaySeconds} from now: add
        them to its time, once, if it has been throttled already.
        """
        now = self._seconds()
        addedSeconds = now + delaySeconds - max(now, self._heldUntilSeconds)
        if addedSeconds > 0:
            self._heldUntilSeconds = now + delaySeconds
            self.deadlineSeconds += addedSeconds

    def expire(self) -> None:
        """
        The time is up, as far as the timer knows.
        """
        remainingSeconds = self.deadlineSeconds - self._seconds()
        if remainingSeconds > 0:
            self.cancel()
            self._park(remainingSeconds)
        elif self._participant.isExcused:
            # Whoever answers it starts the session again.
            self.cancel()
        else:
            super().expire()

    def onExpiration(self) -> None:
        """
        It has been silent for too long.
        """
        self._expired()

    def _park(self, delaySeconds: float) -> None:
        self.delaySeconds = delaySeconds
        self._firesSeconds = self._seconds() + delaySeconds
        self._purgatory.tryCompleteElseWatch(self, (self._key,))


class Connections:
    """
    Which participants were heard of last by which connection.
    """

    def __init__(self) -> None:
        self._participants: dict[Any, set[Participant]] = {}

    def heard(self, participant: Participant, connection: Any) -> None:
        """
        C{participant} was heard of by C{connection}, any object that can be
        hashed; L{None} for none that matters.
        """
        if participant.connection is connection:
            return
        self.forget(participant)
        participant.connection = connection
        if connection is not None:
            self._participants.setdefault(connection, set()).add(participant)

    def forget(self, participant: Participant) -> None:
        """
        C{participant} is gone.
        """
        connection, participant.connection = participant.connection, None
        if connection is None:
            return
        others = self._participants[connection]
        others.discard(participant)
        if not others:
            del self._participants[connection]

    def on(self, connection: Any) -> Collection[Participant]:
        """
        Who was heard of last by C{connection}.
        """
        return self._participants.get(connection, ())

    def lost(self, connection: Any) -> None:
        """
        C{connection} is closed: its participants may be around for long yet,
        and it need not be.
        """
        for participant in self._participants.pop(connection, ()):
            participant.connection = None

    def throttled(self, connection: Any, delaySeconds: float) -> None:
        """
        Nothing is read from C{connection} for C{delaySeconds}: nobody who uses
        it may be missed because of that.
        """
        for participant in self._participants.get(connection, ()):
            participant.session.hold(delaySeconds)
