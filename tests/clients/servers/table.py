"""The servers: how each is started, used and overloaded."""

from __future__ import annotations

import itertools
import os
import secrets
import subprocess
import threading
from collections.abc import Iterator, Mapping

from attrs import frozen

from tests.attacks.siteattacks import MULTIPART, Attack, again, get, uploads
from tests.clients.servers.conversations import (
    added,
    asksCache,
    asksEcho,
    asksMailbox,
    asksPage,
    asksRelay,
    asksVersion,
    form,
    frame,
    inMailbox,
    meeting,
    pickled,
    upgrade,
    usesBuildbot,
    usesCarbon,
    usesEcho,
    usesMailbox,
    usesMatrix,
    usesRelay,
    usesSite,
)
from tests.clients.servers.running import Overload, Server, prepared
from tests.kit.attack import MIB
from tests.kit.brokerprocess import DYING_WITH_US

_BYTES = "application/octet-stream"
_ECHO_BYTES = 100_000
_LATER = [b""] * 50
"""Sent while the server upgrades a websocket: what comes earlier may be lost, as browsers never send it."""

_PAGES = """
from twisted.web.resource import Resource
class Page(Resource):
    def render_GET(self, request):
        return b"x" * (16 << 20)
    def render_POST(self, request):
        return b"%d bytes" % len(request.content.read())
resource = Page()
"""

_ASGI = """
async def application(scope, receive, send):
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] != "websocket.disconnect":
            text = message["text"]
            for _ in range(300 if text == "much" else 1):
                await send({"type": "websocket.send", "text": "x" * 100_000 if text == "much" else text})
    elif scope["type"] == "http":
        size, isMore = 0, True
        while isMore:
            event = await receive()
            size += len(event.get("body", b""))
            isMore = event.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64 if scope["path"] == "/large" else 0):
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
        await send({"type": "http.response.body", "body": b"%d bytes" % size})
"""

_AUTOBAHN = """
import sys
from autobahn.twisted.websocket import WebSocketServerFactory, WebSocketServerProtocol
from twisted.internet import endpoints, reactor
class Echo(WebSocketServerProtocol):
    def onMessage(self, payload, isBinary):
        for _ in range(300 if payload == b"much" else 1):
            self.sendMessage(b"x" * 100_000 if payload == b"much" else payload, isBinary)
factory = WebSocketServerFactory()
factory.protocol = Echo
endpoints.serverFromString(reactor, sys.argv[1]).listen(factory)
reactor.run()
"""

_BUILDBOT = r"""
from buildbot.plugins import schedulers, steps, util, worker
c = BuildmasterConfig = {}
c["workers"] = [worker.Worker("w", "secret")]
c["protocols"] = {"pb": {"port": r"tcp:$port2:interface=127.0.0.1"}}
prints = steps.ShellCommand(command=["seq", "100000"])
c["builders"] = [util.BuilderConfig(name="b", workernames=["w"], factory=util.BuildFactory([prints]))]
c["schedulers"] = [schedulers.ForceScheduler(name="force", builderNames=["b"])]
c["www"] = {"port": r"$listen"}
c["buildbotURL"] = "http://127.0.0.1:$port/"
c["buildbotNetUsageData"] = None
"""

_CARBON = """
[cache]
STORAGE_DIR = $directory
CONF_DIR = $directory
LINE_RECEIVER_INTERFACE = 127.0.0.1
PICKLE_RECEIVER_INTERFACE = 127.0.0.1
CACHE_QUERY_INTERFACE = 127.0.0.1
CACHE_QUERY_PORT = $port
LINE_RECEIVER_PORT = $port2
PICKLE_RECEIVER_PORT = $port3
MAX_UPDATES_PER_SECOND = 10
MAX_UPDATES_PER_SECOND_ON_SHUTDOWN = 100000
"""


_CONCH = ["twisted[conch]", "paramiko"]

_IGNORED = bytes.fromhex("0000000c 06 02 00000000 000000000000")
"""A packet that says nothing."""

_PASSWORD = os.environ.setdefault("ADMISSION_SSH_PASSWORD", secrets.token_hex())
"""Of this run, for all of its processes."""

_LOGIN = """
import os, paramiko, sys, time
def execute(command, **window):
    transport = paramiko.Transport(("127.0.0.1", int(sys.argv[1])))
    transport.connect(username="root", password=os.environ["ADMISSION_SSH_PASSWORD"])
    channel = transport.open_session(**window)
    channel.exec_command(command)
    return channel
"""

_COMMANDS = """
channel = execute("wc -c")
channel.sendall(bytes(8 << 20))
channel.shutdown_write()
print(channel.makefile().read().split()[-1])
# It is not to end before all of it has gone: conch forgets the rest, protected or not.
print(execute("head -c 8388608 /dev/zero; sleep 2").makefile().read().count(b"\\0"))
"""

_UNREAD = """
channels = [execute("head -c 50000000 /dev/zero", window_size=1 << 15) for _ in range(6)]
time.sleep(1000)
"""


# For ports that services open while they start, by number or as sockets of their own.
_EVERY_PORT = """
from admission import Admission, wrapPorts
wrapPorts(lambda: Admission(pool="bounded:64MiB", quota=[QUOTA]))
"""

_SYNAPSE = """
server_name: test
report_stats: false
listeners: [{port: $port, type: http, bind_addresses: [127.0.0.1], resources: [{names: [client]}]}]
database: {name: sqlite3, args: {database: homeserver.db}}
media_store_path: media
signing_key_path: signing.key
macaroon_secret_key: secret
trusted_key_servers: []
enable_registration: true
enable_registration_without_verification: true
"""


def _much(message: bytes) -> Attack:
    """Websockets that do not read."""
    return Attack(lambda: itertools.chain([upgrade(80)], _LATER, [message]), 12, isReading=False)


def _pairs() -> Attack:
    """Pairs at a relay, of which one side sends and the other reads nothing."""
    numbers = itertools.count(1 << 59)

    def sends() -> Iterator[bytes]:
        side = next(numbers)
        head = meeting(side % 2, side // 2)
        return itertools.chain([head], again(bytes(64 << 10))) if side % 2 else iter([head])

    return Attack(sends, 40, isReading=False)


@frozen
class _Mailbox:
    """Ten listeners at a mailbox that read nothing, and one that talks, and reads."""

    def run(self, port: int, tlsPort: int) -> None:
        """Do it."""
        opening = [upgrade(port, "/v1"), *_LATER, inMailbox("listener")]
        listeners = Attack(lambda: iter(opening), 10, isReading=False)
        threading.Thread(target=listeners.run, args=(port, tlsPort)).start()
        Attack(lambda: itertools.chain(opening, again(added(100_000))), 1).run(port, tlsPort)


def _newMetrics() -> Iterator[bytes]:
    """Lines of metrics that nobody knows."""
    for first in itertools.count(step=1000):
        yield b"".join(b"flood%d.%d 1 1\n" % (id(first), each) for each in range(first, first + 1000))


def _newPickles() -> Iterator[bytes]:
    for first in itertools.count(step=10_000):
        yield pickled(f"flood{each}" for each in range(first, first + 10_000))


@frozen
class _Ssh:
    """A program of a client of SSH, in the server's own environment, where one is installed."""

    program: str

    def run(self, port: int, tlsPort: int = 0) -> str:
        """Run it to its end."""
        command = [*DYING_WITH_US, prepared("conch", _CONCH) / "python", "-c", _LOGIN + self.program, str(port)]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout


def _usesCommands(port: int) -> Iterator[str]:
    """Bytes for a command, and from one."""
    yield from _Ssh(_COMMANDS).run(port).splitlines()


SERVERS: Mapping[str, Server] = {
    "twistd web": Server(
        command="$bin/twistd -n --pidfile= web --listen $listen --path site",
        files={"site/index.html": "hello", "site/large.rpy": _PAGES},
        asks=asksPage("/"),
        uses=usesSite(
            "/",
            "/large.rpy",
            uploads=[("/large.rpy", bytes(12 * MIB), _BYTES), ("/large.rpy", form(a=bytes(MIB)), MULTIPART)],
        ),
        attacks={
            "60 silent readers of 16 MiB": Overload(
                Attack(lambda: iter([get("/large.rpy")]), 60, isReading=False), 16 * MIB
            ),
            "6 forms of 48 MiB": Overload(Attack(lambda: uploads(48 * MIB, MULTIPART), 6)),
            "small GETs, pipelined, 8 connections": Overload(Attack(lambda: again(get("/") * 2000), 8)),
        },
    ),
    "daphne": Server(
        packages=["daphne"],
        command="$bin/daphne -e $listen app:application",
        files={"app.py": _ASGI},
        asks=asksEcho,
        uses=usesSite("/", "/large", uploads=[("/", bytes(12 * MIB), _BYTES)]),
        attacks={
            "12 websockets that do not read": Overload(_much(frame(b"much")), _ECHO_BYTES),
            "20 silent readers of 64 x 1 MiB": Overload(
                Attack(lambda: iter([get("/large")]), 20, isReading=False), MIB
            ),
            "6 uploads of 15 MiB": Overload(Attack(lambda: uploads(15 * MIB), 6)),
        },
    ),
    "wormhole mailbox": Server(
        packages=["magic-wormhole-mailbox-server"],
        command="$bin/twistd -n --pidfile= wormhole-mailbox --port $listen",
        asks=asksMailbox,
        uses=usesMailbox,
        attacks={"10 listeners that do not read, one talks": Overload(_Mailbox(), _ECHO_BYTES)},
        suite="wormhole_mailbox_server.test",
        tested=["treq", "mock"],
    ),
    "wormhole relay": Server(
        packages=["magic-wormhole-transit-relay"],
        command="$bin/twistd -n --pidfile= transitrelay --port $listen --websocket $listen2",
        ports=2,
        asks=asksRelay,
        uses=usesRelay,
        attacks={"20 pairs whose receiver stalls": Overload(_pairs(), 64 << 10)},
        suite="wormhole_transit_relay.test",
        tested=["mock"],
    ),
    "buildbot": Server(
        packages=["buildbot", "buildbot-www", "buildbot-worker"],
        command="$bin/buildbot start --nodaemon .",
        ports=2,
        before=[
            "$bin/buildbot create-master .",
            "$bin/buildbot-worker create-worker worker 127.0.0.1:$port2 w secret",
        ],
        beside="$bin/buildbot-worker start --nodaemon worker",
        files={"master.cfg": _BUILDBOT},
        asks=asksPage("/api/v2/builders"),
        uses=usesBuildbot,
        attacks={
            "6 forms of 48 MiB": Overload(Attack(lambda: uploads(48 * MIB, MULTIPART), 6)),
            "requests, pipelined, 8 connections": Overload(Attack(lambda: again(get("/api/v2/builders") * 200), 8)),
        },
    ),
    "carbon": Server(
        packages=["carbon", "whisper"],
        command="$bin/carbon-cache.py --nodaemon --config carbon.conf start",
        ports=3,
        files={"carbon.conf": _CARBON, "storage-schemas.conf": "[all]\npattern = .*\nretentions = 60s:1d\n"},
        protecting={"sitecustomize.py": _EVERY_PORT.replace("QUOTA", '"client-bytes:received=200k"')},
        asks=asksCache,
        uses=usesCarbon,
        attacks={
            "4 floods of new metrics": Overload(Attack(_newMetrics, 4), port=1),
            "4 floods of pickles": Overload(Attack(_newPickles, 4), port=2),
        },
    ),
    "scrapyd": Server(
        packages=["scrapyd"],
        command="$bin/scrapyd --pidfile=",
        files={"scrapyd.conf": "[scrapyd]\nhttp_port = $port\n"},
        protecting={
            "protected.tac": (
                "from scrapyd import get_application\nfrom admission import Admission, wrapServices\n"
                'application = wrapServices(get_application(), Admission(pool="bounded:64MiB"))\n'
            )
        },
        protectedCommand="$bin/twistd -n --pidfile= -y protected.tac",
        asks=asksPage("/daemonstatus.json"),
        uses=usesSite(
            "/listprojects.json",
            "/",
            uploads=[("/addversion.json", form(project=b"p", version=b"1", egg=bytes(5 * MIB)), MULTIPART)],
        ),
        attacks={"6 forms of 48 MiB": Overload(Attack(lambda: uploads(48 * MIB, MULTIPART), 6))},
    ),
    "conch": Server(
        packages=_CONCH,
        command="$bin/twistd -n --pidfile= conch --auth file:passwords --port $listen --data .",
        before=["$bin/ckeygen --type ed25519 --filename ssh_host_ed25519_key --no-passphrase --quiet"],
        files={"passwords": f"root:{_PASSWORD}", "moduli": ""},
        asks=asksVersion,
        uses=_usesCommands,
        attacks={
            "6 channels whose windows stay shut": Overload(_Ssh(_UNREAD), 32 << 10),
            "ignored packets, 8 connections": Overload(
                Attack(lambda: itertools.chain([b"SSH-2.0-a\r\n"], again(_IGNORED * 1000)), 8)
            ),
        },
    ),
    "autobahn": Server(
        packages=["autobahn"],
        command="$bin/python server.py $listen",
        files={"server.py": _AUTOBAHN},
        asks=asksEcho,
        uses=usesEcho,
        attacks={
            "12 websockets that do not read": Overload(_much(frame(b"much")), _ECHO_BYTES),
            "200 halves of messages of 1 MiB": Overload(
                Attack(lambda: itertools.chain([upgrade(80)], _LATER, [frame(bytes(MIB))[: MIB // 2]]), 200)
            ),
            "messages without end, 8 connections": Overload(
                Attack(lambda: itertools.chain([upgrade(80)], _LATER, again(frame(b"x" * 10) * 200)), 8)
            ),
        },
    ),
    "synapse": Server(
        packages=["matrix-synapse"],
        command="$bin/python -m synapse.app.homeserver -c homeserver.yaml",
        before=["$bin/python -m synapse.app.homeserver -c homeserver.yaml --generate-keys"],
        files={"homeserver.yaml": _SYNAPSE},
        protecting={"sitecustomize.py": _EVERY_PORT.replace("QUOTA", "")},
        asks=asksPage("/_matrix/client/versions"),
        uses=usesMatrix,
        attacks={
            "6 uploads of 48 MiB": Overload(Attack(lambda: uploads(48 * MIB), 6)),
            "small GETs, pipelined, 8 connections": Overload(
                Attack(lambda: again(get("/_matrix/client/versions") * 200), 8)
            ),
        },
    ),
}
