"""Tests of L{admission.kafka.broker.log.segmentlog} in processes that are killed, or that find no room on the disk."""

import os
import signal
import subprocess
import sys

from admission.kafka.broker.log.interface import LogInUse
from admission.kafka.broker.log.segmentlog import SegmentLog
from tests.kit.logfixture import LogTestCase

# Appends for ever, and puts into a table how far it got; prints what is acknowledged, and producer ids it was given.
APPENDER = """
import sys
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock
from admission.kafka.broker.log.segmentlog import SegmentLog
from tests.kit.logfixture import makeBatch

clock = Clock()
log = SegmentLog(
    sys.argv[1],
    clock,
    lambda: 1_000_000.0,
    maybeDeferred,
    retentionSeconds=None,
    maxPendingBytes=20_000,
    segmentBytes=200_000,
)
if "events" not in log.topics:
    log.createTopic("events", 2, {})
partitions = log.topic("events").partitions
table = log.table("offsets")
for round in range(100_000):
    clock.advance(0)
    producerId = log.allocateProducerId()
    print("id", producerId, flush=True)
    for sequence in range(5):
        lines = []
        for partition in partitions:
            buffer, batch = makeBatch(
                7, 7, producerId=producerId, producerEpoch=0, baseSequence=2 * sequence, valueBytes=5_000
            )
            baseOffset, _ = log.append(partition, buffer, batch)
            lines.append(f"ack {partition.index} {baseOffset} {producerId} {2 * sequence}")
            table.put(b"%d" % partition.index, b"%d" % baseOffset)
        log.whenCommitted(
            lambda verdict, lines=lines: verdict is None and print(*lines, sep="\\n", flush=True)
        )
        if sequence % 2:
            clock.advance(0.1)
"""

# Runs out of room, finds some, and says how far it got.
OUT_OF_ROOM = """
import resource, sys
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock
from admission.kafka.broker.log.interface import LogFailed
from admission.kafka.broker.log.segmentlog import SegmentLog
from tests.kit.logfixture import makeBatch

clock = Clock()
log = SegmentLog(sys.argv[1], clock, lambda: 1_000_000.0, maybeDeferred, retentionSeconds=None)
(partition,) = log.createTopic("events", 1, {}).partitions
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
told = []
while not any(told):
    log.append(partition, *makeBatch(1, valueBytes=50_000))
    log.whenCommitted(told.append)
    clock.advance(0)
assert isinstance(told[-1], LogFailed), told
assert partition.highWatermark == partition.nextOffset == len(told) - 1, partition
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.append(partition, *makeBatch(1, valueBytes=50_000))
log.whenCommitted(told.append)
clock.advance(0)
assert told[-1] is None, told
print(partition.highWatermark, told[-2])
log.close()
"""


class ProcessTests(LogTestCase):
    """What the log has acknowledged outlives its process."""

    def launch(self, program: str) -> "subprocess.Popen[str]":
        """Run a program with the directory of this test's log, which is closed."""
        self.successResultOf(self.log.close())
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(
            [sys.executable, "-c", program, self.path],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def test_kill(self) -> None:
        """
        After any number of kills everything acknowledged is there and known as
        a duplicate, what was put into a table is hardly older than what was appended
        before it and never newer, and no producer id was given twice.
        """
        acknowledged: list[tuple[int, int, int, int]] = []
        ids: list[int] = []
        for lineCount in (1, 300, 47, 555):
            process = self.launch(APPENDER)
            assert process.stdout is not None and process.stderr is not None
            lines = [process.stdout.readline() for _ in range(lineCount)]
            refused = self.assertRaises(LogInUse, SegmentLog, self.path, self.clock, lambda: 0.0, None)
            self.assertEqual(refused.pid, process.pid)
            process.send_signal(signal.SIGKILL)
            # Not communicate(), which passes over what has been read ahead.
            rest, errors = process.stdout.read(), process.stderr.read()
            self.assertEqual((process.wait(), errors), (-signal.SIGKILL, ""))
            # The last line may be cut off.
            complete = ("".join(lines) + rest).rpartition("\n")[0]
            for word, *numbers in map(str.split, complete.splitlines()):
                if word == "id":
                    ids.append(int(numbers[0]))
                else:
                    index, baseOffset, producerId, sequence = map(int, numbers)
                    acknowledged.append((index, baseOffset, producerId, sequence))
        self.assertGreater(len(acknowledged), 500)
        self.assertEqual(len(ids), len(set(ids)))

        self.log = self.openLog()
        partitions = self.log.topic("events").partitions
        self.assertNotIn(self.log.allocateProducerId(), ids)
        for index, baseOffset, _, _ in acknowledged:
            (batch,) = self.read(partitions[index], baseOffset, 1)
            self.assertEqual(int.from_bytes(batch[:8], "big"), baseOffset)
        for partition in partitions:
            ends = partition.logStartOffset
            for batch in self.readAll(partition):
                self.assertEqual(int.from_bytes(batch[:8], "big"), ends)
                ends += 2
            self.assertEqual(ends, partition.nextOffset)
            latest = self.log.table("offsets").get(b"%d" % partition.index)
            assert latest is not None
            # Records are written before tables, and a kill may come between; what is pending is bounded.
            self.assertIn(partition.nextOffset - int(latest), (2, 4, 6))
        newest = {(index, producerId): (offset, sequence) for index, offset, producerId, sequence in acknowledged}
        for (index, producerId), (offset, sequence) in newest.items():
            result = self.append(
                partitions[index],
                *(7, 7),
                producerId=producerId,
                producerEpoch=0,
                baseSequence=sequence,
            )
            self.assertEqual(result, (offset, True))

    def test_noRoom(self) -> None:
        """A file that may not grow loses the turn's appends, and nothing else; when it may again, the log goes on."""
        process = self.launch(OUT_OF_ROOM)
        output, errors = process.communicate()
        self.assertEqual(process.returncode, 0, errors)
        highWatermark, _, reason = output.partition(" ")
        self.assertIn("ulimit -f", reason)
        self.log = self.openLog()
        events = self.partition()
        self.assertEqual(events.highWatermark, int(highWatermark))
        self.assertEqual(len(self.readAll(events)), int(highWatermark))
