"""
The status port: whatever is sent, there is at most one answer, which is none of those that say that the server has
failed; the log shows no error; the connection is closed in time, and nothing of it is left.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.logger import capturedLogs
from twisted.python.failure import Failure

from admission.control import Explanation
from admission.interfaces import QuotaEntity, QuotaStatus
from admission.metrics.registry import SensorRegistry
from admission.status.pages import StatusPages
from admission.status.site import MAX_HEADER_BYTES, REQUEST_SECONDS, STALLED_SECONDS, StatusSite
from tests.kit.statusfixture import (
    TURN_SECONDS,
    StandInControl,
    StandInDocument,
    StatusTransport,
    TurningClock,
    unchunked,
)

MAX_BYTES = 2048

_HEAD: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3}) [^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n")
_CODES: Final = {200, 304, 400, 403, 404, 405, 413, 414, 417, 431, 501, 505}
_MAX_ANSWER_BYTES: Final = 1 << 17

_PATHS: Final = ("", "status.json", "explain", "quotas", "sensors", "metrics", "healthz", "help", "page.js", "nothing")

TOKENS = [
    *(f"/{path}".encode() for path in _PATHS),
    *(b"GET ", b"HEAD ", b"POST ", b"OPTIONS ", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b"\r\n\r\n"),
    *(
        b"Host: localhost\r\n",
        b"Host: [::1]:9090\r\n",
        b"Host: \xff\r\n",
        b"Content-Length: 5\r\n",
        b"Expect: 100-continue\r\n",
    ),
    *(b"Transfer-Encoding: chunked\r\n", b"If-Modified-Since: ", b"?clientId=a&user=b&ip=::1", b"%ff", b"%00", b"%2F"),
]


def seeds() -> Sequence[bytes]:
    requests = [
        f"{method} /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n" for method in ("GET", "HEAD") for path in _PATHS
    ]
    requests += [
        "GET /explain?clientId=a%20b&user=u&ip=192.0.2.1 HTTP/1.1\r\nHost: [::1]:9090\r\n\r\n",
        "GET /explain?clientId=%ff&ip=fe80::1%25eth0 HTTP/1.1\r\nHost: broker.example.\r\n\r\n",
        "POST /explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\na=b",
        "GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "GET http://localhost/healthz HTTP/1.0\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /help HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ]
    return [b"\x01" + each.encode("latin-1") for each in requests]


class _Control(StandInControl):
    def explain(self, request: Any, now: float) -> list[Explanation]:
        # A policy that keeps what it is told would keep no more.
        assert len(request.principal.encode()) <= 240
        assert len(request.clientId.encode("utf-8", "surrogatepass")) <= 240
        return super().explain(request, now)


def _site(clock: TurningClock) -> StatusSite:
    control = _Control()
    control.limits = {QuotaEntity(user="alice", clientId="c"): {"producer_byte_rate": 5.0}}
    control.explanations = [
        Explanation("client-bytes", False, QuotaStatus("producer_byte_rate", 5.0, QuotaEntity(user="alice"), 2.0, 0.5))
    ]
    sensors = SensorRegistry(clock.seconds)
    document: Any = StandInDocument(control, sensors)
    return StatusSite(StatusPages(clock, document).root, clock, ["Broker.example"])


def check(data: bytes) -> None:
    if not data:
        return
    clock = TurningClock()
    random, sent = Random(data[0]), data[1:]
    with capturedLogs() as logged:
        site = _site(clock)
        channel = site.buildProtocol(None)
        transport = StatusTransport(peerAddress=IPv4Address("TCP", "192.0.2.9", 54321))
        channel.makeConnection(transport)
        while sent and not transport.disconnecting:
            count = random.choice((1, 7, 100, 2048))
            channel.dataReceived(sent[:count])
            sent = sent[count:]
            clock.advance(TURN_SECONDS)
        for _ in range(50):
            clock.advance(TURN_SECONDS)
        clock.advance(REQUEST_SECONDS)
        clock.advance(STALLED_SECONDS)
        assert transport.disconnecting or transport.isAborted, "the connection is still open"
        channel.connectionLost(Failure(ConnectionDone()))
        clock.advance(TURN_SECONDS)
    assert not site.channels
    assert not clock.getDelayedCalls()
    failures = [event for event in logged if "log_failure" in event]
    assert not failures, failures[0]["log_failure"]
    _checkAnswer(transport.value())


def _checkAnswer(answer: bytes) -> None:
    answer = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    if not answer:
        return
    head = _HEAD.match(answer)
    assert head is not None, answer
    code = int(head[1])
    assert code in _CODES, answer
    body = answer[answer.index(b"\r\n\r\n") + 4 :]
    assert len(answer) <= _MAX_ANSWER_BYTES + 8 * MAX_HEADER_BYTES
    if b"transfer-encoding: chunked" in head[0].lower() and body:
        body = unchunked(body.decode("utf-8")).encode()
    if b"application/json" in head[0].lower() and body:
        json.loads(body)
