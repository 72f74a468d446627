"""
What operators write: sizes, times, rates, limits, addresses, descriptions of policies.  It is understood, or refused
with the documented error; what was understood means the same after it was written and read again; a policy is built
and asked without taking much memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final
from unittest.mock import patch

from twisted.internet.task import Clock
from twisted.python.usage import UsageError

from admission import plugins
from admission.commands.limitsyntax import formatAmount, parseAmount
from admission.interfaces import (
    IMemoryPoolFactory,
    IMetricsExporterFactory,
    IPolicyFactory,
    IPurgatoryFactory,
    IQuotaPolicyFactory,
    IWaitOrderFactory,
    PolicyContext,
    Request,
    Usage,
)
from admission.kafka.serving.listenoptions import parseHostPort
from admission.plugins import PolicyError, buildPolicy, checkPolicy, parseDescription
from admission.units import (
    formatBytes,
    formatSeconds,
    parseBytes,
    parseRate,
    parseSeconds,
    roundedAmount,
    roundedBytes,
    roundedSeconds,
)

from ..bounds import bounded

MAX_BYTES = 256

_POLICY_BYTES: Final = 64 << 20
"""What a policy may take at once: C{producer-ids} has that much by default."""

_SMALLEST_SECONDS: Final = 1e-20
"""See L{formatSeconds}."""

_LIMITS: Final = (
    "producer_byte_rate",
    "request_percentage",
    "producer_ids_rate",
    "connection_creation_rate",
    "controller_mutation_rate",
)

_INTERFACES: Final[Sequence[type[IPolicyFactory]]] = (
    IMemoryPoolFactory,
    IWaitOrderFactory,
    IPurgatoryFactory,
    IQuotaPolicyFactory,
    IMetricsExporterFactory,
)

_NOT_BUILT: Final = "spark"
"""It makes directories."""

_REQUEST: Final = Request("Produce", "alice", "client", "192.0.2.1", 1000, (7, 8))

TOKENS = [
    *(unit.encode() for unit in ("KiB", "MiB", "TiB", "kB", "ms", "us", "d", "/1h", "/s", "-1", "1e9", "nan", "inf")),
    *(
        f":{name}=".encode()
        for name in (
            *("strict", "max", "tick", "size", "produce", "fetch", "algorithm", "burst", "windows", "window", "meters"),
            *("shadow", "percent", "perSecond", "rate", "layers", "falsePositives", "maxBytes", "mode", "cleanup"),
        )
    ),
    *(word.encode() for word in ("yes", "no", "bucket", "window", "refuse", "throttle", "0.01", "\\:", "\\\\")),
]


def _checkDescription(text: str) -> None:
    try:
        name, positional, keywords = parseDescription(text)
    except PolicyError:
        return

    def quoted(value: str) -> str:
        for character in "\\:=":
            value = value.replace(character, f"\\{character}")
        return value

    written = [name, *positional, *(f"{quoted(key)}={quoted(value)}" for key, value in keywords.items())]
    again = ":".join([quoted(each) for each in written[: 1 + len(positional)]] + written[1 + len(positional) :])
    # A keyword cannot be quoted.
    if not any(set(key) & set("\\:=") for key in keywords):
        assert parseDescription(again) == (name, positional, keywords), again


def _checkBytes(text: str) -> None:
    try:
        sizeBytes = parseBytes(text)
    except ValueError:
        return
    assert sizeBytes >= 0
    assert parseBytes(formatBytes(sizeBytes)) == sizeBytes, formatBytes(sizeBytes)
    roundedBytes(sizeBytes)


def _checkSeconds(text: str) -> None:
    for unit in ("s", "ms"):
        try:
            seconds = parseSeconds(text, unit)
        except ValueError:
            return
        assert seconds >= 0
        assert math.isfinite(seconds)
        if seconds == 0 or seconds > _SMALLEST_SECONDS:
            assert parseSeconds(formatSeconds(seconds)) == seconds, formatSeconds(seconds)
        roundedSeconds(seconds)


def _checkRate(text: str) -> None:
    try:
        rate = parseRate(text)
    except ValueError:
        return
    assert rate >= 0
    assert math.isfinite(rate)
    roundedAmount(rate)


def _checkAmount(text: str) -> None:
    for name in _LIMITS:
        try:
            amount = parseAmount(name, text)
        except ValueError:
            continue
        assert amount > 0
        if not 1e-24 <= amount <= 1e39:
            continue
        written = formatAmount(name, amount)
        assert math.isclose(parseAmount(name, written), amount, rel_tol=1e-14), (name, amount, written)


def _checkAddress(text: str) -> None:
    try:
        host, port = parseHostPort("--advertise", text)
    except UsageError:
        return
    assert host
    assert 0 < port < 65536


def _checkPolicy(interface: type[IPolicyFactory]) -> Callable[[str], None]:
    def check(text: str) -> None:
        try:
            if parseDescription(text)[0] == _NOT_BUILT:
                checkPolicy(interface, text)
                return
        except PolicyError:
            return
        context = PolicyContext(Clock(), lambda: 1e9, None)
        try:
            policy = bounded(lambda: buildPolicy(interface, text, context), _POLICY_BYTES)
        except PolicyError:
            return
        bounded(lambda: _ask(interface, policy), _POLICY_BYTES)

    return check


def _ask(interface: type[IPolicyFactory], policy: Any) -> None:
    """Have a policy do a little of what it is for."""
    if interface is IQuotaPolicyFactory:
        for now in (0.0, 1.0, 1e6):
            assert policy.decide(_REQUEST, now).delaySeconds >= 0
            delaySeconds = policy.record(_REQUEST, Usage(1000, 2000, 0.1, 1), now)
            assert delaySeconds >= 0, delaySeconds
            policy.budgetBytes(_REQUEST, now)
            policy.explain(_REQUEST, now)
            policy.sweep(now)
    elif interface is IMemoryPoolFactory:
        lease = policy.tryAllocate(1, "a client")
        if lease is not None:
            lease.release()
        policy.charge(100, "responses").release()


_CHECKS: Final[Sequence[Callable[[str], None]]] = (
    _checkDescription,
    _checkBytes,
    _checkSeconds,
    _checkRate,
    _checkAmount,
    _checkAddress,
    *map(_checkPolicy, _INTERFACES),
)


def seeds() -> Sequence[bytes]:
    texts = [
        ["bounded:64MiB:strict=yes", "a:b=c:d\\:e", "name"],
        ["64MiB", "0.5k", "0", "9999999999999999999999"],
        ["500ms", "7d", "0.1us", "12"],
        ["4M", "64KiB/s", "100/1h", "1/0.001ms"],
        ["4M", "1/1d", "4000T", "0.001", "1e3", "100/1h", "1234567.875"],
        ["broker.example:9092", "[::1]:9092", "a:0"],
        ["bounded:64MiB", "bounded:64MiB:strict=yes:max=1MiB", "unbounded"],
        ["rounds"],
        ["wheel", "wheel:tick=10ms:size=512", "calllater"],
        [
            "client-bytes:produce=4M:fetch=8M",
            "client-bytes:produce=1/1h:algorithm=bucket:burst=2s",
            "client-bytes:fetch=10:windows=3:window=1m:meters=5:shadow=yes",
            "request-time:percent=50:meters=7",
            "connections:perSecond=10:burst=5s",
            "requests:rate=30/1m:burst=20:meters=7:kinds=put+get",
            "producer-ids:rate=10:window=1h:layers=2:falsePositives=0.1:maxBytes=1MiB:windows=3:cleanup=1s:mode=throttle",
        ],
        ["spark:/nowhere:rotate=1s:cap=1GiB:sealing=inline"],
    ]
    return [bytes((kind,)) + text.encode() for kind, some in enumerate(texts) for text in some]


_listFactories: Final = cache(plugins.listFactories)


def check(data: bytes) -> None:
    # To look for plug-ins takes longer than all else.
    with patch.object(plugins, "listFactories", _listFactories):
        _check(data)


def _check(data: bytes) -> None:
    if data:
        _CHECKS[data[0] % len(_CHECKS)](data[1:].decode("utf-8", "replace"))
