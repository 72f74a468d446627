"""L{admission.web.body}: a body is a file like any other, wherever it is."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from hypothesis import given, strategies as st
from twisted.internet.defer import Deferred, fail, succeed
from twisted.trial.unittest import SynchronousTestCase

from admission.testing.scriptedpool import ScriptedPool
from admission.web.body import LeasedBody, SpooledBody

SIZES = st.none() | st.integers(-1, 30)


class LeasedBodyTests(SynchronousTestCase):
    """In memory."""

    @given(
        st.binary(max_size=60).map(lambda data: data.replace(b"\x00", b"\n")),
        st.lists(st.tuples(st.sampled_from(["read", "readline", "readinto", "seek", "tell", "getvalue"]), SIZES)),
    )
    def test_asBytesIO(self, data: bytes, calls: list[tuple[str, int | None]]) -> None:
        """Whatever is done to it, it says what an L{BytesIO} does."""
        lease: Any = ScriptedPool(1000).tryAllocate(64, "somebody")
        body, model = LeasedBody(lease), BytesIO()
        for each in (body, model):
            each.write(data)
            each.seek(0)
        for name, size in calls:
            said = []
            for each in (body, model):
                if name == "readinto":
                    into = bytearray(max(size or 0, 0))
                    said.append((each.readinto(into), bytes(into)))
                elif name == "seek":
                    said.append((each.seek(max(size or 0, 0)), b""))
                elif name in ("tell", "getvalue"):
                    said.append((getattr(each, name)(), b""))
                else:
                    said.append((getattr(each, name)(size), b""))
            self.assertEqual(said[0], said[1], (name, size))
        self.assertEqual(list(body), list(model))
        lease.release()

    def test_full(self) -> None:
        """No more is written than there is memory for."""
        lease: Any = ScriptedPool(1000).tryAllocate(4, "somebody")
        body = LeasedBody(lease)
        body.write(b"1234")
        self.assertIn("longer than the 4", str(self.assertRaises(ValueError, body.write, b"5")))
        lease.release()


class SpooledBodyTests(SynchronousTestCase):
    """In a file, once it is longer than its memory."""

    @given(st.lists(st.binary(max_size=20), max_size=20))
    def test_whole(self, pieces: list[bytes]) -> None:
        """All of it is there, in its order."""
        lease: Any = ScriptedPool(1000).tryAllocate(16, "somebody")
        body = SpooledBody(lease, lambda write: succeed(write()), lambda: None, self.fail)
        for piece in pieces:
            body.write(piece)
        if not body.isStored:
            body.flush()
        whole = b"".join(pieces)
        self.assertEqual(body.isInMemory, len(whole) <= 16)
        file = body.asFile()
        file.seek(0)
        self.assertEqual(file.read(), whole)
        file.close()
        lease.release()

    def test_diskFull(self) -> None:
        """A failure is told, once."""
        lease: Any = ScriptedPool(1000).tryAllocate(4, "somebody")
        failures: list[Any] = []
        none: Deferred[None] = fail(OSError("full"))
        body = SpooledBody(lease, lambda write: none, lambda: None, failures.append)
        body.write(b"12345")
        self.assertEqual((len(failures), body.isWriting), (1, False))
        lease.release()
