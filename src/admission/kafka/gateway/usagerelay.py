# -*- test-case-name: tests.unit.kafka.gateway.test_parentbacking -*-
"""
What the processes of a gateway tell each other; the parent passes it on.
"""

from __future__ import annotations

from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall

from admission.interfaces import IUsageExchange
from admission.shares.usagemessages import NotUnderstood, UsageMessage

from .knownproducers import KnownProducers
from .processchannel import ProcessChannel, Word

TROUBLE_SECONDS: Final = 1.0
"""How often processes learn whether other machines hear from them."""


class UsageRelay:
    """
    Gives each message to all processes.  If there is an exchange with other machines, messages go through that, so that
    all processes get them in one order.
    """

    def __init__(self, known: KnownProducers, exchange: IUsageExchange | None, clock: IReactorTime) -> None:
        """
        @param known: keeps the producers that a process has let through.
        @param exchange: leads to other machines.
        """
        self._known = known
        self._exchange = exchange
        self._channels: list[ProcessChannel] = []
        self._trouble: str | None = None
        self._asking = LoopingCall(self._ask)
        self._asking.clock = clock

    def start(self) -> None:
        if self._exchange is not None:
            self._exchange.start(self._deliver)
            self._asking.start(TROUBLE_SECONDS)

    def stop(self) -> None:
        """
        Ask no more whether there is trouble; the exchange is stopped by its owner.
        """
        if self._asking.running:
            self._asking.stop()

    def join(self, channel: ProcessChannel) -> None:
        """
        Another process is there.
        """
        self._channels.append(channel)
        channel.tell(Word.TROUBLE, self._trouble)

    def leave(self, channel: ProcessChannel) -> None:
        """
        One is gone.
        """
        self._channels.remove(channel)

    def publish(self, message: bytes, isKept: bool, key: str | None = None) -> None:
        """
        A process has a message for all, itself included.
        """
        if self._exchange is None:
            self._deliver(message, False)
        else:
            if isKept:
                # They are noted even if nobody hears the message.
                self._note(message)
            self._exchange.publish(message, isKept, key)

    def _deliver(self, message: bytes, isOld: bool) -> None:
        isNeeded = self._note(message)
        for channel in self._channels:
            # Usage that arrives late would be taken from the limits of a later time.
            if isNeeded or not channel.isBehind:
                channel.send(Word.DELIVER_OLD if isOld else Word.DELIVER, message)

    def _note(self, message: bytes) -> bool:
        """
        @return: whether the message says more than that an amount was taken.
        """
        try:
            understood = UsageMessage.of(message)
        except NotUnderstood:
            # The processes say so.
            return False
        told = [each for each in understood.taken if each.identities]
        for each in told:
            self._known.note(each.entity.user or "", each.identities)
        return bool(told) or understood.limits is not None

    def _ask(self) -> None:
        assert self._exchange is not None
        trouble = self._exchange.trouble()
        if trouble != self._trouble:
            self._trouble = trouble
            for channel in self._channels:
                channel.tell(Word.TROUBLE, trouble)
