"""L{admission.connection.framing}."""

from __future__ import annotations

from collections.abc import Iterable
from struct import pack
from typing import Any

from hypothesis import given, settings, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.connection.framing import Framer, FrameRefused, Framing
from admission.connection.framings import INT32, IntPrefix, Netstring, VarintPrefix
from admission.interfaces import ILease
from admission.testing.scriptedpool import ScriptedPool


def framed(*bodies: bytes) -> bytes:
    """The stream that carries C{bodies}."""
    return b"".join(pack(">i", len(body)) + body for body in bodies)


FRAMINGS: list[Framing] = [*map(IntPrefix, (1, 2, 4, 8)), VarintPrefix(), Netstring()]


def framedBy(framing: Framing, *bodies: bytes) -> bytes:
    """The stream that carries C{bodies} in another way."""
    return b"".join(framing.prefix(len(body)) + body + framing.suffix for body in bodies)


def accept(sizeBytes: int, head: bytes) -> None:
    """Refuse nothing."""


def body(lease: ILease | None) -> bytes:
    """What is in C{lease}, which is then given back."""
    assert lease is not None and lease.buffer is not None
    read = bytes(lease.buffer)
    lease.release()
    return read


class CountedBytes(bytes):
    """Bytes that count what is copied out of them by slicing and joining."""

    copiedBytes = 0

    def __getitem__(self, key: Any) -> Any:
        """Count, and slice."""
        part = super().__getitem__(key)
        if isinstance(key, slice):
            CountedBytes.copiedBytes += len(part)
            return CountedBytes(part)
        return part

    def __add__(self, other: bytes) -> CountedBytes:
        """Count, and join."""
        CountedBytes.copiedBytes += len(self) + len(other)
        return CountedBytes(super().__add__(other))


class CountedBuffer:
    """A buffer that counts what is copied into it, and keeps nothing."""

    def __init__(self) -> None:
        self.copiedBytes = 0

    def __setitem__(self, key: slice, value: bytes | memoryview) -> None:
        """Count."""
        assert key.stop - key.start == len(value)
        assert key.start == self.copiedBytes, "copied out of order"
        self.copiedBytes += len(value)


class CountedLease:
    """A lease of a L{CountedBuffer}."""

    def __init__(self, sizeBytes: int) -> None:
        self.sizeBytes = sizeBytes
        self.buffer = CountedBuffer()


class FramerTests(SynchronousTestCase):
    """L{Framer}."""

    def setUp(self) -> None:
        self.pool = ScriptedPool()
        self.framer = Framer(self.pool.tryAllocate, accept)

    def test_oneFrame(self) -> None:
        """A frame comes out as a lease of exactly its body, once."""
        self.framer.feed(framed(b"hello"))
        lease = self.framer.advance()
        assert lease is not None
        self.assertEqual((lease.sizeBytes, body(lease)), (5, b"hello"))
        self.assertIs(self.framer.advance(), None)
        self.assertEqual((self.framer.bufferedBytes, self.framer.lease), (0, None))

    def test_memoryIsAskedForFirst(self) -> None:
        """The pool is asked as soon as the length is known, for exactly that much, and not before."""
        self.framer.feed(b"\0\0\1")
        self.assertIs(self.framer.advance(), None)
        self.assertEqual(self.pool.requested, [])
        self.framer.feed(b"\0")
        self.assertIs(self.framer.advance(), None)
        self.assertEqual(self.pool.requested, [256])
        assert self.framer.lease is not None
        self.assertEqual((self.framer.lease.sizeBytes, self.framer.filledBytes), (256, 0))

    def test_emptyFrame(self) -> None:
        """A frame without a body asks for no memory, and its lease is released once like any other."""
        self.framer.feed(framed(b"", b"x"))
        lease = self.framer.advance()
        assert lease is not None and lease.buffer is not None
        self.assertEqual((lease.sizeBytes, bytes(lease.buffer), self.pool.requested), (0, b"", []))
        lease.release()
        self.assertRaises(RuntimeError, lease.release)
        self.assertEqual(body(self.framer.advance()), b"x")

    def test_refusedMemory(self) -> None:
        """
        Without memory the frame waits, the rest of the stream stays buffered,
        the pool is not asked again, and a grant goes on where it stopped.
        """
        self.pool.refuse()
        self.framer.feed(framed(b"first", b"second"))
        self.assertIs(self.framer.advance(), None)
        self.assertIs(self.framer.advance(), None)
        self.assertEqual((self.framer.wantedBytes, self.framer.bufferedBytes, self.pool.requested), (5, 15, [5]))
        self.pool.relent()
        lease = self.pool.tryAllocate(5)
        assert lease is not None
        self.framer.grant(lease)
        self.assertIs(self.framer.wantedBytes, None)
        self.assertEqual([body(self.framer.advance()), body(self.framer.advance())], [b"first", b"second"])

    def test_grantOfAnotherSize(self) -> None:
        """A lease that was not asked for is not filled."""
        self.pool.refuse()
        self.framer.feed(framed(b"first"))
        self.framer.advance()
        self.pool.relent()
        lease = self.pool.tryAllocate(6)
        assert lease is not None
        self.assertRaises(AssertionError, self.framer.grant, lease)

    def test_failingAllocation(self) -> None:
        """
        When asking for memory raises, the caller hears of it, and a later
        grant goes on as if it had been refused.
        """

        def fail(sizeBytes: int) -> ILease | None:
            raise MemoryError

        framer = Framer(fail, accept)
        framer.feed(framed(b"hello"))
        self.assertRaises(MemoryError, framer.advance)
        self.assertEqual(framer.wantedBytes, 5)
        lease = self.pool.tryAllocate(5)
        assert lease is not None
        framer.grant(lease)
        self.assertEqual(body(framer.advance()), b"hello")

    def test_negativeLength(self) -> None:
        """A negative length is refused without asking anybody, each time."""
        for sizeBytes in (-1, -(2**31)):
            asked: list[int] = []
            framer = Framer(self.pool.tryAllocate, lambda size, head, asked=asked: asked.append(size))  # type: ignore[misc]
            framer.feed(pack(">i", sizeBytes))
            for _ in range(2):
                self.assertIn(str(sizeBytes), str(self.assertRaises(FrameRefused, framer.advance)))
            self.assertEqual((asked, self.pool.requested), ([], []))

    def test_refusedFrame(self) -> None:
        """
        A frame that is refused raises with the reason given, before memory is
        asked for; so does one without a body.
        """
        framer = Framer(self.pool.tryAllocate, lambda sizeBytes, head: f"not {sizeBytes}")
        for sizeBytes in (2**31 - 1, 0):
            framer.feed(pack(">i", sizeBytes))
            self.assertEqual(str(self.assertRaises(FrameRefused, framer.advance)), f"not {sizeBytes}")
            framer.discard()
        self.assertEqual(self.pool.requested, [])

    def test_head(self) -> None:
        """
        The frame is shown with an empty head as soon as its length is known,
        then with its head, or all of a shorter body; memory is asked for after
        that.
        """
        shown: list[tuple[int, bytes]] = []
        framer = Framer(self.pool.tryAllocate, lambda sizeBytes, head: shown.append((sizeBytes, head)), headBytes=3)
        framer.feed(framed(b"abcdef")[:6])
        self.assertIs(framer.advance(), None)
        self.assertEqual((shown, self.pool.requested), ([(6, b"")], []))
        framer.feed(b"cdef" + framed(b"xy", b""))
        self.assertEqual([body(framer.advance()) for _ in range(3)], [b"abcdef", b"xy", b""])
        self.assertEqual(shown, [(6, b""), (6, b"abc"), (2, b"xy"), (0, b"")])

    def test_refusedBeforeTheHead(self) -> None:
        """A length that is refused as such needs no head to be refused."""
        framer = Framer(self.pool.tryAllocate, lambda sizeBytes, head: "too large", headBytes=4)
        framer.feed(pack(">i", 1000))
        self.assertRaises(FrameRefused, framer.advance)

    def test_discard(self) -> None:
        """Discarding gives back the lease that is being filled, forgets what is buffered, and can be done twice."""
        self.framer.feed(framed(b"x" * 10)[:9])
        self.framer.advance()
        self.assertEqual(len(self.pool.leases), 1)
        self.framer.feed(b"more")
        self.framer.discard()
        self.framer.discard()
        self.assertEqual((self.pool.leases, self.framer.bufferedBytes), ([], 0))
        self.assertEqual((self.framer.lease, self.framer.filledBytes, self.framer.wantedBytes), (None, 0, None))

    def test_discardWhileWaiting(self) -> None:
        """Discarding while memory is waited for leaves nothing wanted."""
        self.pool.refuse()
        self.framer.feed(framed(b"hello"))
        self.framer.advance()
        self.framer.discard()
        self.assertEqual((self.framer.wantedBytes, self.framer.bufferedBytes), (None, 0))

    def test_incompleteLengthKeepsNoChunk(self) -> None:
        """A few bytes of the next frame do not keep the large chunk alive at whose end they came."""
        self.framer.feed(framed(b"x" * 60_000) + b"\0\0")
        self.assertEqual(len(body(self.framer.advance())), 60_000)
        self.assertIs(self.framer.advance(), None)
        self.assertEqual((self.framer.bufferedBytes, len(self.framer._chunk)), (2, 2))

    @settings(max_examples=500)
    @given(
        bodies=st.lists(st.binary(max_size=40), max_size=12),
        headBytes=st.integers(0, 4),
        steps=st.lists(
            st.tuples(
                st.sampled_from(["feed", "feed", "advance", "advance", "refuse", "relent", "grant", "release"]),
                st.integers(0, 60),
            ),
            max_size=80,
        ),
        framing=st.sampled_from([None, *FRAMINGS]),
    )
    def test_anyChunkingAnyRefusals(
        self, bodies: list[bytes], headBytes: int, steps: list[tuple[str, int]], framing: Framing | None
    ) -> None:
        """
        Whatever the chunks, the head, and when memory is refused, granted and
        released: the same frames in the same order, no byte lost or doubled,
        and all memory given back.
        """
        remaining = framed(*bodies) if framing is None else framedBy(framing, *bodies)
        pool = ScriptedPool()
        shown: list[bytes] = []
        framer = Framer(pool.tryAllocate, lambda sizeBytes, head: shown.append(head), headBytes, framing)
        received: list[bytes] = []
        held: list[ILease] = []

        def advance() -> ILease | None:
            lease = framer.advance()
            if lease is not None:
                assert lease.buffer is not None
                received.append(bytes(lease.buffer))
                held.append(lease)
            return lease

        def grant() -> None:
            if framer.wantedBytes is not None:
                lease = pool.tryAllocate(framer.wantedBytes)
                if lease is not None:
                    framer.grant(lease)

        for step, number in steps:
            if step == "feed":
                framer.feed(remaining[:number])
                remaining = remaining[number:]
            elif step == "advance":
                advance()
            elif step == "refuse":
                pool.refuse()
            elif step == "relent":
                pool.relent()
            elif step == "grant":
                grant()
            elif held:
                held.pop(number % len(held)).release()
        framer.feed(remaining)
        pool.relent()
        grant()
        while advance() is not None:
            pass
        self.assertEqual(received, bodies)
        heads = [each[:headBytes] for each in bodies]
        self.assertEqual([head for head in shown if head], [head for head in heads if head])
        self.assertEqual((framer.bufferedBytes, framer.lease, framer.wantedBytes), (0, None, None))
        for lease in held:
            lease.release()
        self.assertEqual(pool.leases, [])


class LinearTests(SynchronousTestCase):
    """What framing costs, in bytes copied."""

    def copied(self, bodies: Iterable[int], chunkBytes: int, headBytes: int, feedFirst: bool) -> tuple[int, int, int]:
        """
        Frame bodies of the given sizes from chunks of C{chunkBytes}.

        @param feedFirst: whether all chunks are fed before the first frame is read.
        @return: the bytes of the stream, those copied into leases, and those
            copied besides.
        """
        stream = b"".join(pack(">i", sizeBytes) + bytes(sizeBytes) for sizeBytes in bodies)
        leases: list[CountedLease] = []

        def allocate(sizeBytes: int) -> Any:
            leases.append(CountedLease(sizeBytes))
            return leases[-1]

        framer = Framer(allocate, accept, headBytes)
        CountedBytes.copiedBytes = 0
        for start in range(0, len(stream), chunkBytes):
            framer.feed(CountedBytes(stream[start : start + chunkBytes]))
            while not feedFirst and framer.advance() is not None:
                pass
        while framer.advance() is not None:
            pass
        self.assertEqual(framer.bufferedBytes, 0)
        return len(stream), sum(lease.buffer.copiedBytes for lease in leases), CountedBytes.copiedBytes

    def test_eachByteIsCopiedOnce(self) -> None:
        """
        Each byte of a body is copied into its lease once, and a chunk at most
        once more, whatever the chunking and whether frames are read as they
        come or all at the end.
        """
        for bodies, chunkBytes in [
            ([1 << 20], 1000),
            ([1 << 20], 16_384),
            ([1 << 20], 65_536),
            ([100] * 3000, 7),
            ([100] * 3000, 16_384),
            ([0] * 3000, 1),
            ([0] * 3000, 65_536),
            ([70_000, 3, 0] * 4, 16_384),
            ([70_000, 3, 0] * 4, 1000),
        ]:
            for headBytes in (0, 4):
                for feedFirst in (False, True):
                    streamBytes, inLeases, besides = self.copied(bodies, chunkBytes, headBytes, feedFirst)
                    self.assertEqual(inLeases, sum(bodies))
                    # A head of up to 8 bytes may be joined a byte at a
                    # time, and is shown once.
                    chunks = streamBytes // chunkBytes + 1
                    allowed = streamBytes + 60 * len(bodies) + 16 * chunks
                    self.assertLessEqual(besides, allowed, (bodies[:3], chunkBytes, headBytes, feedFirst))


class FramingsTests(SynchronousTestCase):
    """L{admission.connection.framings}."""

    def read(self, framing: Framing, stream: bytes, refuse: Any = accept) -> list[bytes]:
        """The frames of a stream that comes a byte at a time."""
        framer = Framer(ScriptedPool().tryAllocate, refuse, 0, framing)
        frames = []
        for index in range(len(stream)):
            framer.feed(stream[index : index + 1])
            lease = framer.advance()
            if lease is not None:
                frames.append(body(lease))
        return frames

    def test_examples(self) -> None:
        """The bytes that are usual."""
        hello = b"hello"
        for framing, stream in (
            (IntPrefix(1), b"\x05hello\x00"),
            (IntPrefix(2), b"\x00\x05hello\x00\x00"),
            (INT32, b"\x00\x00\x00\x05hello\x00\x00\x00\x00"),
            (VarintPrefix(), b"\x05hello\x00"),
            (Netstring(), b"5:hello,0:,"),
        ):
            self.assertEqual(self.read(framing, stream), [hello, b""])
            self.assertEqual(framedBy(framing, hello, b""), stream)
        self.assertEqual(VarintPrefix().prefix(300), b"\xac\x02")
        self.assertEqual(VarintPrefix().parse(b"\xac\x02x"), (2, 300))

    def test_refused(self) -> None:
        """What is no prefix, what says too much, and another suffix end the stream."""
        for framing, stream in (
            (VarintPrefix(), b"\xff" * 6),
            (Netstring(), b"x"),
            (Netstring(), b":"),
            (Netstring(), b"05:"),
            (Netstring(), b"1" * 11),
            (Netstring(), b"2:abc"),
            (Netstring(), b"0:x"),
        ):
            self.assertRaises(FrameRefused, self.read, framing, stream)

    def test_tooLarge(self) -> None:
        """A size is refused before anything is allocated, and one that cannot be said is an error."""
        for framing in FRAMINGS:
            refusal = self.assertRaises(
                FrameRefused, self.read, framing, framing.prefix(200), lambda sizeBytes, head: f"{sizeBytes}"
            )
            self.assertEqual(str(refusal), "200")
        for framing in (IntPrefix(1), IntPrefix(2), VarintPrefix()):
            self.assertRaises(ValueError, framing.prefix, 1 << 40)
        self.assertRaises(ValueError, IntPrefix, 3)
