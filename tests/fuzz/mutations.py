"""Mutations of inputs that are the same in every run, for where there is no fuzzer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

#: What means something in a length, a count or a number.
_BYTES: Final = (0x00, 0x01, 0x02, 0x7F, 0x80, 0xFE, 0xFF)
_NUMBERS: Final = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xff\x0f", bytes(8))


def mutations(seeds: Sequence[bytes], tokens: Sequence[bytes], count: int, random: Random) -> Iterator[bytes]:
    """
    Change inputs at random.

    @param tokens: what may also be put into them.
    """
    for _ in range(count):
        changed = bytearray(random.choice(seeds))
        for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
            _mutate(changed, seeds, tokens, random)
        yield bytes(changed)


def _mutate(changed: bytearray, seeds: Sequence[bytes], tokens: Sequence[bytes], random: Random) -> None:
    at = random.randrange(len(changed) + 1)
    kind = random.randrange(7)
    if kind == 0 and changed:
        changed[at - 1] = random.choice(_BYTES)
    elif kind == 1 and changed:
        changed[at - 1] ^= 1 << random.randrange(8)
    elif kind == 2:
        del changed[at : at + random.randrange(1, 16)]
    elif kind == 3:
        changed[at:at] = random.randbytes(random.randrange(1, 9))
    elif kind == 4:
        number = random.choice(_NUMBERS)
        changed[at : at + len(number)] = number
    elif kind == 5:
        other = random.choice(seeds)
        begin = random.randrange(len(other) + 1)
        changed[at:at] = other[begin : begin + random.randrange(1, 64)]
    elif tokens:
        changed[at : at + random.choice((0, 0, 4))] = random.choice(tokens)
