"""Sites that somebody else starts, behind proxies: nginx and HAProxy where they are installed, and a stand-in."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from unittest import SkipTest

from twisted.trial.unittest import SynchronousTestCase

from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS, TWISTD, freePort, until
from tests.kit.certificates import makeCertificates
from tests.kit.proxyheaders import Balancer

ONE, OTHER, FORGED = "127.0.0.2", "127.0.0.3", "198.51.100.7"

NGINX = """
daemon off;
pid {directory}/nginx.pid;
error_log stderr;
events {{}}
http {{
  access_log off;
  client_body_temp_path {directory};
  proxy_temp_path {directory};
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://127.0.0.1:{server};
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    }}
  }}
}}
"""

HAPROXY = """
defaults
  mode tcp
  timeout connect 10s
  timeout client 30s
  timeout server 30s
listen balanced
  bind 127.0.0.1:{port}
  server site 127.0.0.1:{server} {header}
"""


class ProxyTests(SynchronousTestCase):
    """Limits go by the client's address, whichever proxy passes on its connection or requests; nobody makes one up."""

    def setUp(self) -> None:
        self.directory = Path(self.mktemp()).absolute()
        self.directory.mkdir()
        (self.directory / "index.html").write_text("hello")

    def started(self, *command: str, log: str) -> Path:
        """Run a program until the end of the test."""
        path = self.directory / log
        with path.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=self.directory, env=ENVIRONMENT, stdout=output, stderr=subprocess.STDOUT
            )
        self.addCleanup(process.wait, PATIENCE_SECONDS)
        self.addCleanup(process.terminate)
        return path

    def serve(self, endpoint: str = "tcp", *settings: str) -> int:
        """C{twistd web} as anybody starts it, which lets each client ask twice; its port."""
        port = freePort()
        given = [r"quota=requests\:rate=1/1h\:burst=2", "trustedProxies=127.0.0.1", *settings]
        description = f"admission:{endpoint}:{port}:interface=127.0.0.1:{':'.join(given)}"
        log = self.started(*TWISTD, "web", "--listen", description, "--path", ".", log="site.log")
        until(lambda: f"starting on {port}" in log.read_text())
        self.log = log
        return port

    def proxied(self, program: str, configuration: str, server: int, **words: str) -> int:
        """A proxy in front of it; its port."""
        found = shutil.which(program)
        if found is None:
            raise SkipTest(f"{program} is not installed")
        port = freePort()
        path = self.directory / f"{program}.conf"
        path.write_text(configuration.format(directory=self.directory, port=port, server=server, **words))
        options = {"nginx": ["-p", str(self.directory), "-e", "stderr", "-c"], "haproxy": ["-f"]}[program]
        self.started(found, *options, str(path), log=f"{program}.log")
        until(lambda: isListening(port))
        return port

    def statuses(self, port: int, client: str, count: int = 3, **headers: str) -> Sequence[int]:
        """What a client at another address of this machine is answered, on a connection for each request."""
        found = []
        for _ in range(count):
            with closing(HTTPConnection("127.0.0.1", port, PATIENCE_SECONDS, (client, 0))) as connection:
                connection.request("GET", "/", headers={name.replace("_", "-"): text for name, text in headers.items()})
                found.append(connection.getresponse().status)
        return found

    def test_nginx(self) -> None:
        """It adds the client to X-Forwarded-For, in front of which a client may have made one up."""
        server = self.serve()
        port = self.proxied("nginx", NGINX, server)
        self.assertEqual(self.statuses(port, ONE), [200, 200, 429])
        self.assertEqual(self.statuses(port, OTHER, X_Forwarded_For=FORGED, Forwarded=f"for={FORGED}"), [200, 200, 429])
        self.assertEqual(self.statuses(server, "127.0.0.4", X_Forwarded_For=FORGED), [200, 200, 429])
        self.assertIn(ONE, self.log.read_text())
        self.assertNotIn(FORGED, self.log.read_text())

    def test_haproxy(self) -> None:
        """It sends a header of either version in front of the connection."""
        for header in ("send-proxy", "send-proxy-v2"):
            port = self.proxied("haproxy", HAPROXY, self.serve(), header=header)
            for client in (ONE, OTHER):
                self.assertEqual(self.statuses(port, client), [200, 200, 429])

    def test_haproxyBeforeTLS(self) -> None:
        """The header is in front of TLS, too, as a balancer sends it that passes TLS on."""
        certificates = makeCertificates(self.directory)
        server = self.serve("ssl", f"privateKey={certificates.serverKey}", f"certKey={certificates.serverCertificate}")
        port = self.proxied("haproxy", HAPROXY, server, header="send-proxy-v2")
        for client in (ONE, OTHER):
            self.assertEqual([statusOverTLS(port, client) for _ in range(3)], [200, 200, 429])

    def test_standIn(self) -> None:
        """A stand-in for a balancer passes on connections of two clients; what a client sends itself says nothing."""
        server = self.serve()
        for client in (FORGED, "198.51.100.8"):
            with self.balanced(server, client) as port:
                self.assertEqual(self.statuses(port, ONE), [200, 200, 429])
        with socket.create_connection(("127.0.0.1", server), PATIENCE_SECONDS, ("127.0.0.5", 0)) as connection:
            connection.sendall(f"PROXY TCP4 {FORGED} 127.0.0.1 1 2\r\nGET / HTTP/1.1\r\n\r\n".encode())
            self.assertIn(b" 400 ", connection.recv(1000))

    @contextmanager
    def balanced(self, server: int, client: str) -> Iterator[int]:
        """The port of a stand-in that says that all connections are of one client."""
        balancer = Balancer(server, client)
        try:
            yield balancer.port
        finally:
            balancer.close()


def isListening(port: int) -> bool:
    """Whether anybody takes connections there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def statusOverTLS(port: int, client: str) -> int:
    """What a client is answered over TLS."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS, (client, 0)) as plain,
        context.wrap_socket(plain) as connection,
    ):
        connection.sendall(b"GET / HTTP/1.1\r\nHost: site\r\nConnection: close\r\n\r\n")
        return int(connection.recv(1000).split()[1])
