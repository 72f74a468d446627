# -*- test-case-name: tests.unit.kafka.wire.test_passing -*-
"""
Erase the addresses of nodes from a response that is too large to be collected.

Its length has left before its end is known, so nothing in it can become longer or
shorter.  What is erased are only hints: a node says where a partition has moved, and a
client that is not told asks Metadata.
"""

from typing import Final

from attrs import frozen

from .addresses import ADDRESS
from .responsewalk import TAG_NUMBER, Span, walkFor

#: A tag number that no message uses; clients skip tagged fields that they do not know (KIP-482).
_UNKNOWN_TAG: Final = 127

#: Makes a node id negative and leaves it different from all others, of which a Java client must not see one twice.  It
#: goes on to use what Metadata told it about the nodes whose ids it does know.
_NEGATIVE: Final = 0x80

#: No name of a host begins with a hyphen, so that nobody asks a name server about it.
_NO_HOST: Final = ord("-")


@frozen
class _Erasure:
    """
    Bytes to overwrite with the same one; positions count as those of L{Span}.
    """

    begin: int
    end: int
    byte: int


def _erasure(span: Span) -> _Erasure:
    if span.name == TAG_NUMBER:
        return _Erasure(span.begin, span.end, _UNKNOWN_TAG)
    if span.name == "node_id":
        return _Erasure(span.begin, span.begin + 1, _NEGATIVE)
    return _Erasure(span.begin, span.end, _NO_HOST if span.name == "host" else 0)


class AddressEraser:
    """
    Erases the addresses from one response to Produce, Fetch or ShareFetch.

    A tagged field with addresses gets a number that clients do not know, and only
    zeros.  Where such a field is not tagged, each address gets a negative node id, a
    host of hyphens and the port 0.
    """

    def __init__(self, apiKey: int, apiVersion: int) -> None:
        """
        @param apiKey: Produce, Fetch, ShareFetch or ShareAcknowledge, in a version
            that has addresses.
        """
        self._spans: list[Span] = []
        self._erasures: list[_Erasure] = []
        self._passedBytes = 0
        self._walk = walkFor(apiKey, apiVersion, ADDRESS)(self._spans)
        self._isOver = False
        next(self._walk)

    def feed(self, chunk: bytes) -> bytes:
        """
        Pass the next bytes of the body.

        @return: as many bytes; C{chunk} itself if there is nothing to erase from it.
        @raise MalformedResponse: if a length makes no sense.
        """
        if not self._isOver:
            try:
                self._walk.send(chunk)
            except StopIteration:
                self._isOver = True
        begin = self._passedBytes
        end = self._passedBytes = begin + len(chunk)
        if self._spans:
            self._erasures += map(_erasure, self._spans)
            self._spans.clear()
        if not self._erasures:
            return chunk
        erased = bytearray(chunk)
        for each in self._erasures:
            first, last = max(each.begin, begin) - begin, min(each.end, end) - begin
            if first < last:
                erased[first:last] = bytes((each.byte,)) * (last - first)
        self._erasures = [each for each in self._erasures if each.end > end]
        return bytes(erased)
