# -*- test-case-name: tests.spark.test_aggregate -*-
"""
What kinds of requests meant to policies when recordings did not say so, and all requests were Kafka's.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..interfaces import CONNECTION, CONNECTION_TRAITS, RECEIVED, RECEIVED_TRAITS, SENT, SENT_TRAITS, Traits

_UNCOUNTED = Traits(countsReceived=False, countsSent=False)

_TRAITS: Mapping[str, Traits] = {
    CONNECTION: CONNECTION_TRAITS,
    RECEIVED: RECEIVED_TRAITS,
    SENT: SENT_TRAITS,
    "Produce": Traits(countsSent=False),
    "Fetch": Traits(countsReceived=False, waitsForOthers=True),
    **dict.fromkeys(("JoinGroup", "SyncGroup"), Traits(countsReceived=False, countsSent=False, waitsForOthers=True)),
}

_CASES = " ".join(f"WHEN '{kind}' THEN {traits.code}" for kind, traits in _TRAITS.items())

CODE_OF_KIND = f"CASE kind {_CASES} ELSE {_UNCOUNTED.code} END"
"""The code of the traits, in Spark's SQL."""

TWO_WAY = RECEIVED_TRAITS.code | SENT_TRAITS.code
"""The part of a code that says that bytes count in both directions."""


def traitsOfKind(kind: str) -> Traits:
    return _TRAITS.get(kind, _UNCOUNTED)
