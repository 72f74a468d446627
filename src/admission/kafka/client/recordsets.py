# -*- test-case-name: tests.unit.kafka.client.test_recordsets -*-
"""
What was fetched of one partition, decoded as it is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..wire.batches import BatchRefused, Record, recordsOf
from ..wire.stored import batchesIn
from .compression import decompress
from .errors import RecordsRefused
from .subscriptionstate import ConsumerRecord, TopicPartition

_STORED_TIME_BIT = 0x08


class PartitionRecords:
    """
    The records of one partition in one response, a batch at a time.

    @ivar place: the partition.
    @ivar nextOffset: the offset to go on with, once what was taken is done.
    @ivar sizeBytes: what is held, as it arrived.
    @ivar isExhausted: whether there are no more.
    """

    def __init__(self, place: TopicPartition, records: memoryview, fetchOffset: int, maxBatchBytes: int) -> None:
        """
        @param records: what the broker returned; begins with the batch that
            C{fetchOffset} lies in, so perhaps before it.
        @param fetchOffset: the first offset that is wanted.
        @param maxBatchBytes: the largest batch after decompression.
        """
        self.place = place
        self.nextOffset = fetchOffset
        self.sizeBytes = len(records)
        self.isExhausted = False
        self._batches = batchesIn(records)
        self._maxBatchBytes = maxBatchBytes
        self._decoded: Sequence[Record] = ()
        self._index = 0
        self._batchEnd = fetchOffset
        self._refusal: BatchRefused | None = None

    def take(self, count: int) -> list[ConsumerRecord]:
        """
        The next records, at most C{count}; fewer only at the end, or before
        what cannot be read.

        @raise RecordsRefused: if the next batch cannot be read; nothing was
            taken then.
        """
        taken: list[ConsumerRecord] = []
        topic, partition = self.place
        while len(taken) < count and not self.isExhausted:
            end = min(self._index + count - len(taken), len(self._decoded))
            for record in self._decoded[self._index : end]:
                taken.append(
                    ConsumerRecord(
                        topic, partition, record.offset, record.timestampMs, record.key, record.value, record.headers
                    )
                )
                self.nextOffset = record.offset + 1
            self._index = end
            if end == len(self._decoded):
                self.nextOffset = max(self.nextOffset, self._batchEnd)
                if not self._decodeNext():
                    if self._refusal is not None and not taken:
                        raise RecordsRefused(topic, partition, self.nextOffset, str(self._refusal))
                    break
        return taken

    def _decodeNext(self) -> bool:
        """
        Decode the next batch.

        @return: whether there was one.
        """
        self._decoded, self._index = (), 0
        if self._refusal is not None:
            return False
        try:
            found = next(self._batches, None)
            if found is None:
                self.isExhausted = True
                return False
            batch, payload = found
            if not batch.isControl:
                records = recordsOf(batch, decompress(batch.compression, payload, self._maxBatchBytes))
                if batch.attributes & _STORED_TIME_BIT:
                    records = [
                        Record(each.key, each.value, batch.maxTimestampMs, each.headers, each.offset)
                        for each in records
                    ]
                if batch.baseOffset < self.nextOffset:
                    records = [each for each in records if each.offset >= self.nextOffset]
                self._decoded = records
        except BatchRefused as refusal:
            self._refusal = refusal
            return False
        self._batchEnd = batch.lastOffset + 1
        return True
