"""
Members of a group, one in a process.

C{python -m tests.kit.groupclients SETTINGS TOPIC [MAX-WORK-SECONDS]} reads the topic, one record at a time, and commits
each when it is done with.  A record's value says for how many seconds to work on it, but it does so for no longer than
it is allowed to, should nobody be there any more to give commands.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping

from tests.kit.libraries import Consumer, Listener, Message, Settings, Trouble, makeConsumer
from tests.kit.lines import nextLine, say

LEAVE = "leave"
"""The command to leave the group."""

GO_ON = "go on"
"""The command to be done with the record at hand."""

POLL_SECONDS = 0.5
_REST_SECONDS = 0.1


class Member(Listener):
    """
    Tells what happens to a member.

    @ivar uncommitted: where to go on in the partitions that it has; another mapping whenever they change, so that
        nothing is committed for a partition that has been another's meanwhile.
    @ivar reading: the same, as it was when the last record came.
    """

    def __init__(self) -> None:
        self.uncommitted: dict[int, int] = {}
        self.reading = self.uncommitted

    def assigned(self, partitions: list[int]) -> None:
        self.uncommitted = {}
        say("assigned", partitions)

    def revoked(self, partitions: list[int]) -> None:
        self.uncommitted = {}
        say("revoked", partitions)

    def received(self, messages: list[Message]) -> list[Message]:
        self.reading = self.uncommitted
        for each in messages:
            say("record", each.partition, each.offset)
        return messages

    def mayCommit(self, offsets: Mapping[int, int]) -> bool:
        return offsets is self.uncommitted


def work(seconds: float) -> bool:
    """
    Work on a record, for less long if the command L{GO_ON} comes.

    @return: whether to read on.
    """
    end = time.monotonic() + seconds
    while (remaining := end - time.monotonic()) > 0:
        told = nextLine(remaining)
        if told is not None:
            return told == GO_ON
    return True


def commit(consumer: Consumer, member: Member) -> None:
    """Commit what is done with, if it is not; what cannot be committed now is the next time, if it is ours still."""
    offsets = member.uncommitted
    if not offsets:
        return
    begin = time.monotonic()
    try:
        consumer.commit(offsets)
    except Trouble as refusal:
        say("refused", str(refusal))
    else:
        say("committed", begin, offsets)
        offsets.clear()


def main(settings: Settings, topic: str, maxWorkSeconds: float = 60.0) -> None:
    """Be a member until the command L{LEAVE}, or the end of all commands."""
    member = Member()
    consumer = makeConsumer(settings, topic, member)
    goesOn = True
    while goesOn:
        try:
            messages = consumer.poll(POLL_SECONDS, 1)
        except Trouble as trouble:
            # That a broker is not there is for the application to know.
            say("trouble", str(trouble))
            messages = []
            time.sleep(_REST_SECONDS)
        for each in messages:
            seconds = min(float(each.value or b""), maxWorkSeconds)
            if seconds:
                say("working", each.partition, each.offset)
                goesOn = work(seconds)
            assert each.partition is not None
            member.reading[each.partition] = each.offset + 1
        commit(consumer, member)
        goesOn = goesOn and nextLine(0) in (None, GO_ON)
    consumer.close()
    say("left")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    main(Settings(**json.loads(sys.argv[1])), sys.argv[2], *map(float, sys.argv[3:]))
