# -*- test-case-name: tests.unit.commands.test_completioncommand -*-
"""
What a shell completes after an option, and as an argument: the C{compData} of L{Options<twisted.python.usage.Options>},
with types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from twisted.python.usage import CompleteDirs, CompleteFiles, CompleteList, Completer, Completions

FILES: Final[Completer] = CompleteFiles(descr="file")  # type: ignore[no-untyped-call]

DIRECTORIES: Final[Completer] = CompleteDirs(descr="directory")  # type: ignore[no-untyped-call]


def oneOf(words: Iterable[str]) -> Completer:
    """
    One of these words.
    """
    return CompleteList(tuple(words), descr="one of")  # type: ignore[no-untyped-call]


def completing(*arguments: Completer, options: Mapping[str, Completer] | None = None) -> Completions:
    """
    @param options: by their long names; the value of one that is not named here is not completed.
    """
    return Completions(optActions=options or {}, extraActions=arguments)  # type: ignore[no-untyped-call]
