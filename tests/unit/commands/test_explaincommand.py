"""Tests for L{admission.commands.explaincommand}, without a broker."""

from __future__ import annotations

import json
import shlex
from datetime import datetime
from io import StringIO
from typing import Any

from admission.commands import explaincommand
from admission.commands.console import CommandFailed
from admission.interfaces import DEFAULT
from tests.kit.commandcases import CommandTestCase


class ExplainTests(CommandTestCase):
    """C{admission explain}."""

    def limit(self, **values: Any) -> dict[str, Any]:
        """A limit as the status port tells it."""
        return {
            "policy": "client-bytes",
            "isShadow": False,
            "limitName": "producer_byte_rate",
            "limit": 1e6,
            "entity": {"user": None, "clientId": DEFAULT, "ip": None},
            "used": 1234567.0,
            "usedFraction": 1.234567,
            "delaySeconds": 0.0,
            "delayEndsAtSeconds": None,
            **values,
        }

    def client(self, **values: Any) -> dict[str, Any]:
        """A client as the status port tells it."""
        return {
            "user": "alice",
            "clientId": "reports",
            "ip": "192.0.2.1",
            "connections": 1,
            "delaySeconds": 0.0,
            "refused": 0,
            **{name: self.limit()[name] for name in ("policy", "limitName", "limit", "used", "usedFraction", "entity")},
            **values,
        }

    def explain(
        self,
        line: str,
        *limits: Any,
        clients: Any = None,
        count: int | None = None,
        clientId: str = "reports",
        share: float | None = None,
        sharing: Any = None,
        user: str = "alice",
    ) -> str:
        """
        Run the command.

        @param limits: what the status port tells.
        @param clients: those that match; one unless given.
        @param count: how many match; those unless given.
        @param clientId: whom the limits are of.
        @param share: how much of each limit the server enforces; L{None} for one that does not say.
        @param sharing: how limits are shared; L{None} for a server that shares none.
        @param user: whose client it is; empty where there are no users.
        @return: what it wrote.
        """
        stdout = StringIO()
        clients = [self.client()] if clients is None else clients
        told = {
            "user": user,
            "clientId": clientId,
            "ip": None,
            "connections": sum(each["connections"] for each in clients),
            "delaySeconds": max([each["delaySeconds"] for each in clients], default=0.0),
            "delayEndsAtSeconds": 1e9,
            "clientCount": len(clients) if count is None else count,
            "clients": clients,
            "limits": limits,
            **({} if share is None else {"limitShare": share}),
            **({} if sharing is None else {"sharing": sharing}),
        }

        def fetch(url: str, timeoutSeconds: float) -> bytes:
            self.url, self.timeoutSeconds = url, timeoutSeconds
            return json.dumps(told).encode()

        explaincommand.run(self.parse("explain", *shlex.split(line)), StringIO(), stdout, fetch)
        return stdout.getvalue()

    def test_question(self) -> None:
        """What was given is asked, encoded as it must be."""
        self.explain("--client-id 'a b&c' --user alice --timeout 3s")
        self.assertEqual(self.url, "http://127.0.0.1:9090/explain?clientId=a+b%26c&user=alice")
        self.assertEqual(self.timeoutSeconds, 3.0)
        self.explain("--client-id '' --ip ::1 --status https://broker.example/")
        self.assertEqual(self.url, "https://broker.example/explain?clientId=&ip=%3A%3A1")

    def test_mistakes(self) -> None:
        """What cannot be asked is refused."""
        self.assertMistakes(
            [
                ("explain", "say which client: --client-id, --user, --ip"),
                ("explain -c a --user ''", "--user is empty: leave it out to mean any"),
                ("explain -c a --ip ''", "--ip is empty: leave it out to mean any"),
                ("explain -c a --status 127.0.0.1:9090", "write a URL, as in http://127.0.0.1:9090"),
                ("explain -c a --status file:///etc/passwd", "write a URL"),
                ("explain -c a --status 'http://[::1'", "write a URL"),
                ("explain -c a --status http://127.0.0.1:many", "write a URL"),
                ("explain -c a --status http://:9090", "write a URL"),
                ("explain -c a --timeout never", "--timeout: 'never'"),
            ]
        )

    def test_nobody(self) -> None:
        """A client without limits is not throttled by any."""
        self.assertEqual(
            self.explain("-c reports"), "client id 'reports' of user 'alice' is not throttled\nno limit holds for it\n"
        )

    def test_neverSeen(self) -> None:
        """Of a client that is not here, and has used nothing, that is said; its limits are told all the same."""
        unknown = (
            "client id 'reports' of user 'alice' is not known: it has no connection, and has used none of its limits "
            "lately"
        )
        lines = self.explain("-c reports", self.limit(used=0.0, usedFraction=0.0), clients=[]).splitlines()
        self.assertEqual((lines[0], len(lines)), (unknown, 4))
        self.assertEqual(self.explain("-c reports", clients=[]).splitlines(), [unknown, "no limit holds for it"])
        self.assertNotIn("not known", self.explain("-c reports", self.limit(used=1.0), clients=[]))

    def test_refused(self) -> None:
        """
        A client that is refused is said to be, and by which policy, rather than what its next request has to wait for;
        if it is throttled, too, that comes first.
        """
        refused = self.client(refused=12, policy="requests", limitName="request_rate")
        self.assertIn(
            "user 'alice' had 12 of its requests refused lately by the policy requests",
            self.explain("-c reports", self.limit(delaySeconds=0.9), clients=[refused]),
        )
        self.assertIn("is throttled", self.explain("-c reports", clients=[{**refused, "delaySeconds": 5.0}]))
        self.assertRegex(self.explain("-u alice", clients=[refused, self.client(clientId="b")]), r"no +12\n.* no +no\n")

    def test_noClientId(self) -> None:
        """A client that gives itself no name is said to be one, rather than to have a name that cannot be seen."""
        self.assertEqual(
            self.explain("-c ''", clientId="").splitlines()[0],
            "the client without a client id of user 'alice' is not throttled",
        )

    def test_noUser(self) -> None:
        """Where nobody logs in there is no user to speak of."""
        self.assertEqual(self.explain("-c reports", user="").splitlines()[0], "client id 'reports' is not throttled")

    def test_together(self) -> None:
        """A limit that all clients share is said to be one."""
        entity = {"user": None, "clientId": None, "ip": None}
        self.assertIn("all clients together", self.explain("-c reports", self.limit(entity=entity)))

    def test_free(self) -> None:
        """It says that a client whose limits are not used up is not throttled; a shadow policy throttles nobody."""
        output = self.explain(
            "-c reports",
            self.limit(used=0.0, usedFraction=0.0),
            self.limit(isShadow=True, delaySeconds=5.0, delayEndsAtSeconds=1e9),
        )
        first, _, title, free, trial = output.splitlines()
        self.assertEqual(first, "client id 'reports' of user 'alice' is not throttled")
        self.assertEqual(
            title.split(), ["Policy", "Limit", "Set", "for", "Used", "Of", "it", "Next", "request", "throttled"]
        )
        self.assertEqual(
            free.split(), ["client-bytes", "producer_byte_rate=1M", "--client-id-default", "0", "0%", "no"]
        )
        self.assertTrue(trial.startswith("client-bytes (shadow)  producer_byte_rate=1M"), trial)

    def test_share(self) -> None:
        """Of a gateway that enforces a share, what was set and what it enforces are told, for any number of clients."""
        [title, row] = self.explain("-c reports", self.limit(limit=5e5), share=0.5).splitlines()[2:]
        self.assertRegex(title, r"Limit +Of which this gateway enforces 1/2 +Set for")
        self.assertRegex(row, r"producer_byte_rate=1M +producer_byte_rate=500k +--client-id-default")
        clients = [self.client(limit=5e5), self.client(limitName=None)]
        [_, first, unknown] = self.explain("-c reports", clients=clients, share=0.5).splitlines()[2:]
        self.assertRegex(first, r"producer_byte_rate=1M +producer_byte_rate=500k +1.235M")
        self.assertRegex(unknown, r" client-bytes +1.235M")
        self.assertRaises(CommandFailed, self.explain, "-c reports", self.limit(), share=0.0)

    def test_shared(self) -> None:
        """Where limits are shared, it is told what is used elsewhere, by how many they are, and who was heard when."""
        own = self.limit(policy="request-time", fraction=1.0, usedHere=1234567.0, usedElsewhere=None)
        both = self.limit(fraction=1.0, usedHere=1e6, usedElsewhere=234567.0)
        sharing = {"servers": 3, "fraction": 1.0, "heardSeconds": 0.25, "trouble": None}
        _, words, _, title, first, second = self.explain("-c reports", both, own, sharing=sharing).splitlines()
        self.assertEqual(words, "limits are shared by 3 servers; another was heard 250 ms ago")
        self.assertRegex(title, r"Set for +Used +Here +Elsewhere +Of it +Next")
        self.assertRegex(first, r"default +1.235M +1M +234.6k +123% +no")
        self.assertRegex(second, r"default +1.235M +1.235M +0 +123% +no")
        for changed, expected in (
            ({"heardSeconds": None}, "limits are shared, and no other server has been heard"),
            ({"fraction": 1 / 3}, "limits are not shared yet; each of 3 servers enforces 1/3 of them"),
            ({"trouble": "limits are not shared: why"}, "limits are not shared: why"),
        ):
            lines = self.explain("-c reports", both, sharing={**sharing, **changed}).splitlines()
            self.assertEqual(lines[1], expected)
        part = {**both, "fraction": 1 / 3}
        [title, first, second] = self.explain("-c reports", part, own, sharing=sharing).splitlines()[3:]
        self.assertRegex(title, r"Limit +Enforced here +Set for")
        self.assertRegex(first, r"producer_byte_rate=1M +1/3 +--client-id-default")
        self.assertRegex(second, r"producer_byte_rate=1M +all +--client-id-default")

    def test_throttled(self) -> None:
        """The policy that would hold a client back longest is named, with when that ends."""
        output = self.explain(
            "-c reports",
            self.limit(delaySeconds=2.0, delayEndsAtSeconds=1e9),
            self.limit(policy="request-time", delaySeconds=2.5, delayEndsAtSeconds=1e9 + 0.5),
        )
        ends = datetime.fromtimestamp(1e9).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        self.assertIn(
            f"is throttled by request-time (producer_byte_rate) with its next request, for 2.5 s, until {ends}",
            output.splitlines()[0],
        )
        self.assertIn(f"1.235M  123%   2 s, until {ends}", output)

    def test_toldToWait(self) -> None:
        """
        How long a client was told to wait is said first, whatever the policies would say now, and also of one that has
        hung up.
        """
        ends = datetime.fromtimestamp(1e9).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        for connections in (1, 0):
            waiting = self.client(delaySeconds=15.0, connections=connections)
            self.assertEqual(
                self.explain("-c reports", self.limit(used=0.0), clients=[waiting]).splitlines()[0],
                "client id 'reports' of user 'alice' is throttled by client-bytes (producer_byte_rate), for 15 s, "
                f"until {ends}",
            )
        for policy, by in (("client-bytes", " by client-bytes"), (None, "")):
            waiting = self.client(delaySeconds=15.0, policy=policy, limitName=None)
            self.assertIn(
                f"is throttled{by}, for 15 s", self.explain("-c reports", self.limit(used=0.0), clients=[waiting])
            )

    def test_several(self) -> None:
        """Where several clients match, they are listed, those that wait longest first."""
        clients = [self.client(clientId="loader", delaySeconds=4.2, connections=0), self.client(clientId="", user="")]
        lines = self.explain("--ip 192.0.2.1", clients=clients).splitlines()
        self.assertEqual(lines[0], "2 clients match; the slowest first:")
        self.assertEqual(lines[2].split()[:3], ["Client", "User", "Connections"])
        self.assertEqual(
            lines[3].split(), ["loader", "alice", "0", "producer_byte_rate=1M", "1.235M", "123%", "4.2", "s", "no"]
        )
        self.assertTrue(lines[4].startswith("(no client id)  (nobody)"), lines[4])
        self.assertIn("99 clients match; the 2 slowest are:", self.explain("--ip 192.0.2.1", clients=clients, count=99))

    def test_json(self) -> None:
        """Programs get what the port tells."""
        document = json.loads(self.explain("-c reports --json", self.limit()))
        self.assertEqual(document["limits"], [self.limit()])

    def test_terminal(self) -> None:
        """A name does not reach the terminal as a command to it."""
        output = self.explain(
            "-c a",
            self.limit(entity={"user": "\x1b[2J", "clientId": None, "ip": None}),
            clients=[self.client(clientId="\x07", user="\x1b[2J") for _ in range(2)],
        )
        output += self.explain("-c a", self.limit(entity={"user": "\x1b[2J", "clientId": None, "ip": None}))
        self.assertNotIn("\x1b", output)
        self.assertNotIn("\x07", output)

    def test_nonsense(self) -> None:
        """Something else than a status port is recognised."""
        for answer in (
            b"<html>",
            b"\xff",
            b"[]",
            b"{}",
            b'{"user": 1, "clientId": 2, "ip": 3, "limits": [4]}',
            b"null",
        ):

            def fetch(url: str, timeoutSeconds: float, answer: bytes = answer) -> bytes:
                return answer

            error = self.assertRaises(
                CommandFailed, explaincommand.run, self.parse("explain", "-c", "a"), StringIO(), StringIO(), fetch
            )
            self.assertIn("does not answer as a status port does", str(error))
