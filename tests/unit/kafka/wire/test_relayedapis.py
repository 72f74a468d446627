"""Tests for L{admission.kafka.wire.relayedapis}."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import _introspect as introspect
from kio.static.constants import EntityType
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.layouts import fixedSizeBytes
from admission.kafka.wire.relayedapis import (
    RELAYED_APIS,
    RELAYED_BY_KEY,
    RELAYED_FLEXIBLE_FROM,
    RelayedApi,
    hasAddresses,
    hasThrottleTime,
    relayed,
    throttleTimeOffset,
)
from admission.kafka.wire.versions import APIS, PRODUCE, SASL_HANDSHAKE

#: WriteTxnMarkers, what controllers and nodes say to each other, and the state of share groups.
_AMONG_NODES = {52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82, 83, 84, 85, 86, 87}

#: DescribeQuorum says where controllers are, and the other two where instances of an application are.
_OTHER_ADDRESSES = {(55, 2), (88, 0), (89, 0)}


def everyRelayedVersion() -> Iterator[tuple[RelayedApi, int]]:
    """Every version of every API that is relayed."""
    for api in RELAYED_APIS:
        for apiVersion in range(api.minVersion, api.maxVersion + 1):
            yield api, apiVersion


def containsAddress(entityType: Any) -> bool:
    """Whether one of kio's classes has a host and a port, at any depth."""
    kinds = {member.name: introspect.classify_field(member) for member in fields(entityType)}
    if {"host", "port"} <= set(kinds):
        return True
    structures = introspect.EntityField | introspect.EntityTupleField
    return any(isinstance(kind, structures) and containsAddress(kind.type_) for kind in kinds.values())


def _throttleTimeOffset(entityType: Any) -> int | None:
    offset = 0
    for member in fields(entityType):
        if member.name == "throttle_time":
            return offset
        sizeBytes = fixedSizeBytes(member)
        if sizeBytes is None:
            return None
        offset += sizeBytes
    return None


class TableTests(SynchronousTestCase):
    """The table of what is relayed says what kio says."""

    def test_allThatClientsUse(self) -> None:
        """Every API that kio knows is in the table once, or is one that clients do not use; names are kio's."""
        self.assertEqual(set(RELAYED_BY_KEY), set(api_key_map) - _AMONG_NODES)
        self.assertEqual(len(RELAYED_BY_KEY), len(RELAYED_APIS))
        for api in RELAYED_APIS:
            self.assertEqual(api_key_map[api.apiKey].replace("_", ""), api.name.lower())

    def test_allThatTheBrokerServes(self) -> None:
        """What the broker serves can be relayed, in the same versions and with the same headers."""
        for api in APIS:
            other = RELAYED_BY_KEY[api.apiKey]
            self.assertEqual(
                (other.name, other.minVersion, other.firstFlexibleVersion),
                (api.name, api.minVersion, api.firstFlexibleVersion),
            )
            self.assertGreaterEqual(other.maxVersion, api.maxVersion)

    def test_versionsAreThoseOfKio(self) -> None:
        """All versions that kio knows are relayed, but Produce ends at 12 and SaslHandshake has one version only."""
        for api in RELAYED_APIS:
            known = [
                apiVersion
                for apiVersion, modules in schema_name_map[api_key_map[api.apiKey]].items()
                if EntityType.response in modules
            ]
            oldest, newest = min(known), max(known)
            if api.apiKey == PRODUCE:
                newest = 12
            elif api.apiKey == SASL_HANDSHAKE:
                oldest = 1
            self.assertEqual((api.minVersion, api.maxVersion), (oldest, newest), api.name)

    def test_flexibility(self) -> None:
        """The versions said to be flexible are those that are, requests and responses alike."""
        for api, apiVersion in everyRelayedVersion():
            for load in load_request_schema, load_response_schema:
                isFlexible = load(api.apiKey, apiVersion).__flexible__
                self.assertEqual(isFlexible, api.isFlexible(apiVersion), (api.name, apiVersion))
                self.assertEqual(isFlexible, apiVersion >= RELAYED_FLEXIBLE_FROM[api.apiKey])

    def test_throttleTimes(self) -> None:
        """A response has a throttle time if kio says so, at the offset that follows from the fields before it."""
        for api, apiVersion in everyRelayedVersion():
            entityType = load_response_schema(api.apiKey, apiVersion)
            isThrottled = any(member.name == "throttle_time" for member in fields(entityType))
            self.assertEqual(hasThrottleTime(api.apiKey, apiVersion), isThrottled, (api.name, apiVersion))
            self.assertEqual(
                throttleTimeOffset(api.apiKey, apiVersion), _throttleTimeOffset(entityType), (api.name, apiVersion)
            )

    def test_addresses(self) -> None:
        """
        A response is said to have addresses if it contains any, unless those are not
        of nodes that clients connect to.
        """
        for api, apiVersion in everyRelayedVersion():
            if (api.apiKey, apiVersion) not in _OTHER_ADDRESSES:
                self.assertEqual(
                    hasAddresses(api.apiKey, apiVersion),
                    containsAddress(load_response_schema(api.apiKey, apiVersion)),
                    (api.name, apiVersion),
                )
        for apiKey, apiVersion in _OTHER_ADDRESSES:
            self.assertFalse(hasAddresses(apiKey, apiVersion))

    def test_relayed(self) -> None:
        """A version is relayed from the oldest to the newest of its row, and nothing else is."""
        for api, apiVersion in everyRelayedVersion():
            self.assertIs(relayed(api.apiKey, apiVersion), api)
        for api in RELAYED_APIS:
            self.assertIsNone(relayed(api.apiKey, api.minVersion - 1))
            self.assertIsNone(relayed(api.apiKey, api.maxVersion + 1))
        self.assertIsNone(relayed(999, 0))
        self.assertIsNone(relayed(-1, -1))

    def test_importIsCheap(self) -> None:
        """The table comes without kio."""
        code = "import sys, admission.kafka.wire.relayedapis; print([each for each in sys.modules if 'kio' in each])"
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        self.assertEqual(child.stdout.strip(), "[]")
