"""
A member of a consumer group on Twisted: prints the records of a topic until
it has seen so many.

Run it, several at a time if you like:
    python examples/consume_group.py [HOST:PORT [TOPIC [COUNT]]]
"""

import sys
from collections.abc import Sequence

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater, react

from admission.kafka import ConsumerRecord, ConsumerService, consumerSettings, makeConsumer

ADDRESS, TOPIC, COUNT = [*sys.argv[1:], *["127.0.0.1:9092", "greetings", "3"][len(sys.argv) - 1 :]]

settings = consumerSettings(
    {
        "bootstrap.servers": ADDRESS,
        "group.id": "example",
        "auto.offset.reset": "earliest",
        # How long the application may work on what one poll gave it; heartbeats go on meanwhile.
        "max.poll.interval.ms": "5m",
        "session.timeout.ms": "10s",
    }
)
finished: Deferred[None] = Deferred()
seen = 0


def handle(records: Sequence[ConsumerRecord]) -> Deferred[None]:
    """
    Print the records.  The next ones come when the result fires.
    """
    global seen
    for record in records:
        print(f"{record.partition}-{record.offset}", (record.key or b"").decode(), (record.value or b"").decode())
    seen += len(records)
    if seen >= int(COUNT) and not finished.called:
        finished.callback(None)
    return deferLater(reactor, 0.01)


service = ConsumerService(
    lambda: makeConsumer(reactor, settings),
    [TOPIC],
    handle,
    onAssigned=lambda partitions: print("assigned", *partitions),
    onRevoked=lambda partitions: print("revoked", *partitions),
    onFailure=lambda failure: finished.errback(failure),
)


def main(reactor: object) -> Deferred[None]:
    """
    Run the service until it has seen enough.  In a twistd plug-in or tac file it would be a child of the application.
    """
    service.startService()
    return finished.addBoth(lambda result: service.stopService().addCallback(lambda _: result))


react(main)
