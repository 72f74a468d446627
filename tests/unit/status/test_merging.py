"""Tests for L{admission.status.merging}."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import given, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.status.clients import MAX_CLIENTS
from admission.status.document import MAX_CONNECTIONS
from admission.status.merging import mergedExplanation, mergedReasons, mergedStatus

EMPTY: dict[str, Any] = {"connections": {"largest": []}, "throttled": {"count": 0, "throttledCount": 0, "clients": []}}

ENTITY = {"user": None, "clientId": "<default>", "ip": None}


def document(**sections: Any) -> dict[str, Any]:
    """What a process says that has nothing else to say."""
    return {**EMPTY, **sections}


def merged(*documents: dict[str, Any]) -> dict[str, Any]:
    """The documents of processes, from 1 on, as one."""
    return mergedStatus(dict(enumerate(documents, 1)))


def client(clientId: str, delaySeconds: float, usedFraction: float | None = 1.0, **fields: Any) -> dict[str, Any]:
    """A row of a client that is throttled."""
    row = {"user": "alice", "clientId": clientId, "ip": "192.0.2.1", "connections": 1, "delaySeconds": delaySeconds}
    row["refused"] = 0
    limit = {"policy": "client-bytes", "limitName": "received_byte_rate", "limit": 10.0, "entity": ENTITY}
    return {**row, **limit, "used": usedFraction and 10 * usedFraction, "usedFraction": usedFraction, **fields}


def throttled(*clients: dict[str, Any], count: int | None = None) -> dict[str, Any]:
    """The document of a process with these clients."""
    known = len(clients) if count is None else count
    return document(throttled={"count": known, "throttledCount": known, "clients": list(clients)})


NUMBERS = st.integers(0, 1 << 40)
FIELDS = st.dictionaries(st.sampled_from(["bytes", "count", "cpuSeconds"]), NUMBERS)
DOCUMENTS = st.fixed_dictionaries(
    {"connections": FIELDS.map(lambda fields: {**fields, "largest": []}), "throttled": st.just(EMPTY["throttled"])},
    optional={
        "total": NUMBERS,
        "pool": FIELDS,
        "nested": st.dictionaries(st.sampled_from(["fields", "others"]), FIELDS),
        "nodes": st.lists(
            st.builds(lambda nodeId, fields: {**fields, "nodeId": nodeId}, st.none() | st.integers(0, 3), FIELDS),
            unique_by=lambda row: row["nodeId"],
        ),
    },
)


def numbersIn(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], int]]:
    """All numbers, with where they are."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            if name != "nodeId":
                yield from numbersIn(each, (*path, name))
    elif isinstance(value, list):
        for row in value:
            yield from numbersIn(row, (*path, row["nodeId"]))
    else:
        yield path, value


class StatusTests(SynchronousTestCase):
    """The documents of processes become one."""

    @given(st.lists(DOCUMENTS, min_size=1, max_size=5))
    def test_sums(self, documents: list[dict[str, Any]]) -> None:
        """What is counted is the sum of what all count, wherever it is, and nothing is lost."""
        sums: Counter[tuple[Any, ...]] = Counter()
        for each in documents:
            sums.update(dict(numbersIn(each)))
        self.assertEqual(dict(numbersIn(merged(*documents))), dict(sums))

    def test_values(self) -> None:
        """A name says how its values are merged; what one process does not know the others may."""
        rows = (
            ("uptimeSeconds", (3.0, 5.0), 5.0),
            ("cpuSeconds", (3.0, 5.0), 8.0),
            ("heardSeconds", (None, 5.0), 5.0),
            ("heardSeconds", (None, None), None),
            ("sizeBytes", (3, None), None),
            ("maxDescriptors", (1024, 1024), 2048),
            ("maxDescriptors", (-1, -1), -1),
            ("limitShare", (0.5, 0.5), 0.5),
            ("fraction", (1.0, 0.25), 0.25),
            ("servers", (4, 3), 4),
            ("isLive", (True, False), False),
            ("isShort", (True, False), True),
            ("trouble", (None, "it is late"), "it is late"),
            (
                "policies",
                ({"a": {"throttles": 1}}, {"b": {"throttles": 2}}),
                {"a": {"throttles": 1}, "b": {"throttles": 2}},
            ),
            ("texts", (["a", "b"], ["b", "c"]), ["a", "b", "c"]),
        )
        for name, values, expected in rows:
            seen = merged(*(document(**{name: value}) for value in values))[name]
            self.assertEqual((seen, type(seen)), (expected, type(expected)), name)

    def test_nodes(self) -> None:
        """What is known of a node is one row, in the order of the first process."""
        first, second = (
            [
                {"nodeId": None, "links": 1, "stalledSeconds": seconds, "address": None, "throttled": {"ours": 1}},
                {"nodeId": 7, "links": 2, "stalledSeconds": 0.0, "address": "k7:9092", "throttled": {"ours": 0}},
            ]
            for seconds in (0.5, 2.5)
        )
        self.assertEqual(
            merged(document(nodes=first), document(nodes=second), document(nodes=[]))["nodes"],
            [
                {"nodeId": None, "links": 2, "stalledSeconds": 2.5, "address": None, "throttled": {"ours": 2}},
                {"nodeId": 7, "links": 4, "stalledSeconds": 0.0, "address": "k7:9092", "throttled": {"ours": 0}},
            ],
        )

    def test_latency(self) -> None:
        """Of each kind the slowest process is shown, where C{null} is slower than all; the most frequent come first."""
        rows = [
            [{"kind": kind, "count": count, "medianSeconds": 0.1, "percentile99Seconds": slowest}]
            for kind, count, slowest in (("Fetch", 5, 0.5), ("Produce", 4, None), ("Produce", 3, 0.2))
        ]
        self.assertEqual(
            merged(*(document(latency=each) for each in rows))["latency"],
            [
                {"kind": "Produce", "count": 7, "medianSeconds": 0.1, "percentile99Seconds": None},
                {"kind": "Fetch", "count": 5, "medianSeconds": 0.1, "percentile99Seconds": 0.5},
            ],
        )

    def test_responses(self) -> None:
        """Answers are added by kind, the most frequent first."""
        kinds = [[{"kind": "GET", "2xx": 1}], [{"kind": "PUT", "2xx": 1, "429": 1}], [{"kind": "GET", "2xx": 4}]]
        seen = merged(*(document(responses={"2xx": 1, "kinds": each}) for each in kinds))["responses"]
        self.assertEqual(seen, {"2xx": 3, "kinds": [{"kind": "GET", "2xx": 5}, {"kind": "PUT", "2xx": 1, "429": 1}]})

    def test_connections(self) -> None:
        """The largest connections of all are listed, with their process, and as many as of one."""
        documents = [
            document(connections={"open": 90, "largest": [{"heldBytes": held} for held in range(most, most - 20, -1)]})
            for most in (100, 110)
        ]
        seen = merged(*documents)["connections"]
        self.assertEqual((seen["open"], len(seen["largest"])), (180, MAX_CONNECTIONS))
        self.assertEqual(seen["largest"][0], {"process": 2, "heldBytes": 110})
        self.assertEqual(seen["largest"][-1], {"process": 2, "heldBytes": 96})

    def test_throttled(self) -> None:
        """A client is one, however many processes throttle it, and shown as by the one where it waits longest."""
        seen = merged(
            throttled(client("a", 1.0, 1.5), client("b", 2.0)),
            throttled(client("a", 3.0, 1.25, limitName="sent_byte_rate"), client("c", 0.0, None)),
        )["throttled"]
        self.assertEqual((seen["count"], seen["throttledCount"]), (3, 3))
        self.assertEqual([each["clientId"] for each in seen["clients"]], ["a", "b", "c"])
        self.assertEqual(seen["clients"][0], client("a", 3.0, 1.25, limitName="sent_byte_rate", connections=2))

    def test_manyThrottled(self) -> None:
        """As many are listed as of one process, and all are counted."""
        clients = [client(f"c{number}", 1.0 + number) for number in range(MAX_CLIENTS)]
        seen = merged(throttled(*clients, count=50), throttled(client("slow", 99.0), count=1), throttled())["throttled"]
        self.assertEqual((seen["count"], seen["throttledCount"], len(seen["clients"])), (51, 51, MAX_CLIENTS))
        self.assertEqual((seen["clients"][0]["clientId"], seen["clients"][-1]["clientId"]), ("slow", "c1"))


class ExplanationTests(SynchronousTestCase):
    """What processes say of a client becomes one answer."""

    def explanation(self, user: str, *clients: dict[str, Any], **limit: Any) -> dict[str, Any]:
        """What a process says to C{clientId=a}."""
        delaySeconds = max([0.0, *(each["delaySeconds"] for each in clients)])
        row = {"policy": "client-bytes", "isShadow": False, "limitName": "sent_byte_rate", "entity": ENTITY}
        amounts = {"limit": 10.0, "used": 0.0, "usedFraction": 0.0, "delaySeconds": 0.0, "delayEndsAtSeconds": None}
        places = {"usedHere": limit.get("used", 0.0), "usedElsewhere": None, "fraction": 1.0}
        return {
            "user": user,
            "clientId": "a",
            "ip": None,
            "connections": sum(each["connections"] for each in clients),
            "delaySeconds": delaySeconds,
            "delayEndsAtSeconds": 1000.0 + delaySeconds if delaySeconds else None,
            "clientCount": len(clients),
            "limitShare": 1.0,
            "clients": list(clients),
            "limits": [{**row, **amounts, **places, **limit}],
        }

    def test_everywhere(self) -> None:
        """Connections are added, delays are the largest, and so is what is used of each limit."""
        seen = mergedExplanation(
            [
                self.explanation("alice", client("a", 2.0), used=12.0, usedFraction=1.2, delaySeconds=2.0),
                self.explanation("alice", client("a", 1.0), used=11.0, usedFraction=1.1, isShadow=True),
                self.explanation("alice", client("a", 0.0), used=8.0, usedFraction=0.8),
            ]
        )
        self.assertEqual((seen["clientCount"], seen["connections"], len(seen["clients"])), (1, 3, 1))
        self.assertEqual((seen["delaySeconds"], seen["delayEndsAtSeconds"]), (2.0, 1002.0))
        self.assertEqual(
            [(each["isShadow"], each["used"], each["usedFraction"], each["delaySeconds"]) for each in seen["limits"]],
            [(False, 12.0, 1.2, 2.0), (True, 11.0, 1.1, 0.0)],
        )

    def test_here(self) -> None:
        """
        What any of the processes has used is used here, and what is left of what they know of is used elsewhere; a
        limit that is not shared is used here alone.
        """

        def shared(here: float) -> dict[str, Any]:
            return self.explanation("alice", used=10.0, usedHere=here, usedElsewhere=10.0 - here)

        for parts, here in (((2.0, 5.0), 7.0), ((4.0, 6.0), 10.0), ((6.0, 6.0), 10.0)):
            [limit] = mergedExplanation([*map(shared, parts)])["limits"]
            self.assertEqual((limit["used"], limit["usedHere"], limit["usedElsewhere"]), (10.0, here, 10.0 - here))
        [limit] = mergedExplanation([self.explanation("alice", used=each) for each in (3.0, 8.0)])["limits"]
        self.assertEqual((limit["used"], limit["usedHere"], limit["usedElsewhere"]), (8.0, 8.0, None))

    def test_knownToOne(self) -> None:
        """Where one process knows a client, the limits are that client's, and not those that others took it for."""
        nobody = self.explanation("ANONYMOUS", limit=5.0)
        seen = mergedExplanation([nobody, self.explanation("alice", client("a", 0.0), limit=10.0), nobody])
        self.assertEqual((seen["user"], seen["clientCount"], seen["connections"]), ("alice", 1, 1))
        self.assertEqual([each["limit"] for each in seen["limits"]], [10.0])
        self.assertEqual(mergedExplanation([nobody, nobody]), nobody)

    def test_several(self) -> None:
        """Different clients at different processes are several."""
        seen = mergedExplanation(
            [self.explanation("alice", client("a", 0.0)), self.explanation("bob", client("a", 1.0, user="bob"))]
        )
        self.assertEqual((seen["clientCount"], [each["user"] for each in seen["clients"]]), (2, ["bob", "alice"]))


class ReasonsTests(SynchronousTestCase):
    """Why processes are not healthy."""

    def test_whose(self) -> None:
        """A sentence that all say is that of all; others say whose they are."""
        reasons = list(mergedReasons({1: ["a"], 2: ["b", "a"], 4: ["a", "c", "b"]}))
        self.assertEqual(reasons, ["a", "processes 2, 4: b", "process 4: c"])
        self.assertEqual(list(mergedReasons({1: [], 2: []})), [])
