"""
What programs do with a library of Python's: records in a group, transactions, more than a limit allows.

C{python -m tests.clients.suites.programs.pythons LIBRARY ADDRESS CLIENT [PROTOCOL]} says what it does, in lines of the
form C{what: what one sees}; CLIENT is a client id that is limited, PROTOCOL one that groups may have, too.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from attrs import evolve

from tests.kit.libraries import Message, Settings, consumeAll, makeProducer, produceAll

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 100
FENCED = "commit after another producer's init_transactions"

_SECONDS = 60.0


def roundTrip(
    settings: Settings, topic: str, producing: Mapping[str, Any] = {}, consuming: Mapping[str, Any] = {}
) -> str:
    """
    Send records, and read them as the only member of a group.

    @return: what one sees.
    """
    values = [b"%d" % number for number in range(RECORDS)]
    begun = {"acks": "all", "enable.idempotence": True, **producing}
    produceAll(withMore(settings, begun), topic, [Message(value, partition=0) for value in values])
    read = [message.value for message in consumeAll(withMore(settings, consuming), topic, RECORDS)]
    return f"read {len(read)}" if read == values else f"read {read}"


def withMore(settings: Settings, properties: Mapping[str, Any]) -> Settings:
    """The same with further properties."""
    return evolve(settings, properties={**settings.properties, **properties})


def _confluent(address: str, topic: str) -> None:
    from confluent_kafka import KafkaException, Producer

    first, second = (
        Producer({"bootstrap.servers": address, "transactional.id": topic, "log_level": 0}) for _ in range(2)
    )

    def send(producer: Producer, value: bytes) -> None:
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.flush(_SECONDS)

    first.init_transactions(_SECONDS)
    send(first, b"committed")
    first.commit_transaction(_SECONDS)
    send(first, b"aborted")
    first.abort_transaction(_SECONDS)
    send(first, b"fenced")
    second.init_transactions(_SECONDS)
    try:
        first.commit_transaction(_SECONDS)
    except KafkaException as error:
        # It has one class for all errors.
        print(f"{FENCED}: {error.args[0].name()}")
    send(second, b"committed, too")
    second.commit_transaction(_SECONDS)


def _kafkaPython(address: str, topic: str) -> None:
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    first, second = (KafkaProducer(bootstrap_servers=address, transactional_id=topic) for _ in range(2))

    def send(producer: KafkaProducer, value: bytes) -> None:
        producer.begin_transaction()
        producer.send(topic, value, partition=0).get(_SECONDS)

    first.init_transactions()
    send(first, b"committed")
    first.commit_transaction()
    send(first, b"aborted")
    first.abort_transaction()
    send(first, b"fenced")
    second.init_transactions()
    try:
        first.commit_transaction()
    except KafkaError as error:
        print(f"{FENCED}: {type(error).__name__}")
    send(second, b"committed, too")
    second.commit_transaction()
    second.close()


def _aiokafka(address: str, topic: str) -> None:
    asyncio.run(_transact(address, topic))


async def _transact(address: str, topic: str) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    first, second = (AIOKafkaProducer(bootstrap_servers=address, transactional_id=topic) for _ in range(2))

    async def send(producer: AIOKafkaProducer, value: bytes) -> None:
        await producer.begin_transaction()
        await producer.send_and_wait(topic, value, partition=0)

    try:
        await first.start()
        await send(first, b"committed")
        await first.commit_transaction()
        await send(first, b"aborted")
        await first.abort_transaction()
        await send(first, b"fenced")
        await second.start()
        try:
            await first.commit_transaction()
        except KafkaError as error:
            print(f"{FENCED}: {type(error).__name__}")
        await send(second, b"committed, too")
        await second.commit_transaction()
    finally:
        await first.stop()
        await second.stop()


_TRANSACTIONS = {"confluent": _confluent, "kafka-python": _kafkaPython, "aiokafka": _aiokafka}


def transactions(settings: Settings, topic: str) -> str:
    """
    Commit, abort, and be fenced.

    @return: what one sees who wants only what was committed.
    """
    begin = time.monotonic()
    try:
        _TRANSACTIONS[settings.library](settings.address, topic)
    except Exception as error:
        when = "at once" if time.monotonic() - begin < 30 else "late"
        return f"{when}: {error}"
    only = {"isolation.level": "read_committed"}
    read = [message.value for message in consumeAll(withMore(settings, only), topic, 2)]
    return f"read_committed reads {b', '.join(each or b'' for each in read).decode()}"


def limited(settings: Settings, clientId: str) -> str:
    """
    Send three times as much as a limit allows in a second, and a little more.

    @return: what one sees.
    """
    begin = time.monotonic()
    errors: list[object] = []
    named = evolve(settings, clientId=clientId, properties={"acks": 1})
    with closing(makeProducer(named)) as producer:
        missing = 0
        for sizeBytes in (60_000, 1):
            producer.send("limited", Message(bytes(sizeBytes), partition=0), lambda _, error: errors.append(error))
            missing += producer.flush()
        told = producer.throttles()
    refused = [error for error in errors if error is not None]
    if missing or refused:
        return f"not sent: {refused[:1]}"
    return ("held back" if time.monotonic() - begin > 1 else "not held back") + (", and told so" if told else "")


def main(library: str, address: str, clientId: str, protocol: str = "") -> None:
    """Do it all."""
    settings = Settings(library, address)
    for codec in CODECS:
        # kafka-python has no codec of the name none.
        producing = {} if codec == "none" else {"compression.type": codec}
        seen = roundTrip(settings, f"{library}.{codec}", producing)
        print(f"idempotent producer, compression {codec}, and a group: {seen}")
    print(f"transactions: {transactions(settings, f'{library}.transactions')}")
    print(f"three times as much as a limit allows in a second: {limited(settings, clientId)}")
    if protocol:
        seen = roundTrip(settings, f"{library}.{protocol}", consuming={"group.protocol": protocol})
        print(f"a group with group.protocol={protocol}: {seen}")


if __name__ == "__main__":
    main(*sys.argv[1:])
