# -*- test-case-name: tests.unit.test_tlsfailure -*-
"""
What TLS calls an error, in words.
"""

from __future__ import annotations

from typing import Final

from twisted.python.failure import Failure

_UNVERIFIED: Final = "certificate verify failed"


def whyTlsFailed(reason: Failure) -> str | None:
    """
    Why TLS has ended a connection, in words: the peer does not speak it, or one side refuses the other's certificate.

    @return: L{None} if something else has.
    """
    from OpenSSL.SSL import Error

    errors = reason.value.args[0] if isinstance(reason.value, Error) and reason.value.args else None
    if not isinstance(errors, list):
        return None
    words = [error[-1] for error in errors]
    if _UNVERIFIED in words:
        # What may stand before it, such as that a signature does not fit, depends on the key of the stranger.
        return f"TLS failed: {_UNVERIFIED} (it has expired, or no authority that is trusted has signed it)"
    return f"TLS failed: {', '.join(words)}"
