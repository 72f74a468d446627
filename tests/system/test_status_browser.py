"""The status page in a real browser, while real clients are being throttled."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from socket import create_connection
from typing import Any
from unittest import skipUnless
from urllib.parse import urlsplit

from attrs import define, field
from twisted.internet import reactor as installedReactor
from twisted.internet.defer import gatherResults, inlineCallbacks, maybeDeferred
from twisted.internet.protocol import Factory
from twisted.internet.threads import deferToThread
from twisted.protocols.wire import Echo
from twisted.trial.unittest import SynchronousTestCase, TestCase

from admission.admission import wrapFactory
from admission.status.site import statusSite
from tests.kit.brokerprocess import PATIENCE_SECONDS, until
from tests.kit.browser import consoleErrors, openBrowser, resize
from tests.kit.pictures import LARGE, NARROW, WIDE, arePicturesTaken, takePictures
from tests.kit.statusload import GROUP, PRODUCERS, TOPIC, clients, loadedBroker

reactor: Any = installedReactor

HOSTILE = "<img src=x onerror=\"document.title='mine'\">\u202eeno"
"""A name that is code, with a character that turns round what follows it."""

BACKFILL = "backfill"
"""A client that is throttled for as long as it is looked at."""

_PICTURED_SECONDS = 150.0

_VALUES = "return [...document.querySelectorAll('.legend li')].map((each) => each.textContent)"
_PATHS = "return [...document.querySelectorAll('svg path')].filter((each) => each.getAttribute('d')).length"
_HOSTILE = (
    "return [[...document.querySelectorAll('#clients bdi')].some((each) => each.textContent === arguments[0]), "
    "document.images.length, document.title]"
)
_REQUESTED = "return performance.getEntriesByType('resource').map((each) => each.name)"
_POLLS = "return performance.getEntriesByName(new URL('status.json', location.href).href).length"
_WIDTHS = (
    "return [document.scrollingElement.scrollWidth, "
    "Math.max(...[...document.querySelectorAll('table')].map((each) => each.scrollWidth))]"
)
_SECTIONS = (
    "return [...document.querySelectorAll('main > section')].filter((each) => each.checkVisibility())"
    ".map((each) => each.getAttribute('aria-label') ?? each.querySelector('h2').textContent.trim())"
)
_PLOTS = "return [...document.querySelectorAll('figcaption')].map((each) => each.firstChild.textContent)"


_MARKS = "return document.querySelectorAll('#clients .share meter').length"
_TOOLTIPS = (
    "return [...document.querySelectorAll('.legend li[title*=\"quota\"]')]"
    ".map((each) => each.firstChild.nextSibling.textContent)"
)
_SELECT = (
    "const [name] = document.querySelectorAll('#topics td');"
    "getSelection().selectAllChildren(name);"
    "return getSelection().toString().trim()"
)
_SELECTED = "return getSelection().toString().trim()"
_POINTS = (
    "const [figure] = [...document.querySelectorAll('figure')].filter((each) => "
    "each.querySelector('figcaption').textContent.startsWith('Process memory'));"
    "return figure.querySelector('path.c0').getAttribute('d').split(/[ML]/).length - 1"
)
_SHARED = """
    const real = fetch;
    window.fetch = async (url, options) => {
      const answer = await real(url, options);
      if (!url.startsWith("explain")) return answer;
      const said = await answer.json();
      said.sharing = { servers: 2, fraction: 1, heardSeconds: 0.25, trouble: null };
      Object.assign(said.limits[0], { fraction: 0.5, used: 3000, usedHere: 1000, usedElsewhere: 2000 });
      return new Response(JSON.stringify(said));
    };
"""
"""What a gateway would answer that shares its limits, of which it enforces a half of one."""


@define
class Findings:
    """
    What was to be seen.

    @ivar values: the values of all plots at two moments.
    @ivar texts: what parts of the page say.
    @ivar pathCount: how many lines and areas were drawn.
    @ivar widths: by the width of the window, that of the page and that of its widest table.
    @ivar hostile: what became of L{HOSTILE}: whether it was shown as it is, how
        many images there were, and the title of the page.
    @ivar requested: what the page has asked for.
    @ivar errors: what the browser complained about.
    @ivar marked: how many bars have a mark at 100 %.
    @ivar tooltips: the series that say what they are about quotas.
    @ivar selected: the name of a topic that was marked to be copied, and what was marked two looks later.
    @ivar remembered: how many samples the server had kept, and how many points the page drew at its second look.
    @ivar answers: what the page answered to questions about clients, with the table below.
    @ivar shared: what it answered about a limit that is shared.
    @ivar gone: what the page said when there was no broker any more.
    @ivar status: the URL of the port.
    """

    values: list[Sequence[str]] = field(factory=list)
    texts: dict[str, str] = field(factory=dict)
    pathCount: int = 0
    widths: dict[int, tuple[int, int]] = field(factory=dict)
    hostile: Sequence[Any] = ()
    requested: set[str] = field(factory=set)
    errors: Sequence[str] = ()
    marked: int = 0
    tooltips: Sequence[str] = ()
    selected: tuple[str, str] = ("", "")
    remembered: tuple[int, int] = (0, 0)
    answers: list[tuple[str, str]] = field(factory=list)
    shared: tuple[str, str] = ("", "")
    gone: str = ""
    status: str = ""


@cache
def findings() -> Findings:
    """Look at the page; one browser and one broker for all tests here."""
    found = Findings()
    broker = loadedBroker()
    broker.start()
    found.status = broker.status
    try:
        with openBrowser(WIDE) as browser:
            with clients(broker.address), _farOverQuota(broker.address, HOSTILE, BACKFILL):
                until(
                    lambda: (seen := broker.ask("status.json"))["throttled"]["clients"] and seen["groups"]["lagRecords"]
                )
                browser.get(broker.status)
                _look(browser, found)
                # A sample is taken every ten seconds.
                until(lambda: len(broker.ask("history")["samples"]) >= 2)
                browser.refresh()
                until(lambda: "resident" in _textOf(browser, "#plots") and browser.execute_script(_PATHS))
                found.remembered = len(broker.ask("history")["samples"]), browser.execute_script(_POINTS)
            broker.kill()
            until(lambda: "has not answered" in _textOf(browser, "#message"))
            found.gone = f"{_textOf(browser, '#state')}: {_textOf(browser, '#message')}"
    finally:
        broker.remove()
    return found


def _look(browser: Any, found: Findings) -> None:
    until(lambda: all(name in _textOf(browser, "#clients") for name in (*PRODUCERS, HOSTILE, BACKFILL)))
    found.hostile = browser.execute_script(_HOSTILE, HOSTILE)
    for _ in range(2):
        _lookTwice(browser)
        found.values.append(browser.execute_script(_VALUES))
    marked = browser.execute_script(_SELECT)
    _lookTwice(browser)
    found.selected = marked, browser.execute_script(_SELECTED)
    found.pathCount = browser.execute_script(_PATHS)
    for part in ("#state", "#facts", "#clients", "#groups", "#topics", "#topics-count", "#connections", "#reasons"):
        found.texts[part] = _textOf(browser, part)
    for width in (LARGE, WIDE, NARROW):
        resize(browser, width, 900)
        found.widths[width] = tuple(browser.execute_script(_WIDTHS))
    found.marked = browser.execute_script(_MARKS)
    found.tooltips = browser.execute_script(_TOOLTIPS)
    for question in ({"clientId": BACKFILL}, {"clientId": "nobody"}, {"ip": "127.0.0.1"}, {"ip": "nonsense"}):
        found.answers.append(_ask(browser, question))
    # A narrow page says only how far a limit is used.
    resize(browser, WIDE, 900)
    browser.execute_script(_SHARED)
    found.shared = _ask(browser, {"clientId": BACKFILL})
    found.requested = set(browser.execute_script(_REQUESTED))
    # The last question was refused, as it should be.
    found.errors = [each for each in consoleErrors(browser) if "ip=nonsense" not in each]


def _lookTwice(browser: Any) -> None:
    """Wait until the page has asked again twice."""
    polls = browser.execute_script(_POLLS)
    until(lambda: browser.execute_script(_POLLS) > polls + 1)


@contextmanager
def _farOverQuota(address: str, *clientIds: str) -> Iterator[None]:
    """Clients that are throttled all the time: they have records for minutes."""
    from confluent_kafka import Producer

    producers = [Producer({"bootstrap.servers": address, "client.id": each, "log_level": 0}) for each in clientIds]
    for producer in producers:
        for _ in range(50):
            producer.produce(TOPIC, bytes(200_000))
    try:
        yield
    finally:
        for producer in producers:
            producer.purge()


def _ask(browser: Any, question: dict[str, str]) -> tuple[str, str]:
    before = _textOf(browser, "#answer")
    for name in ("clientId", "ip"):
        box = browser.find_element("css selector", f".question input[name={name}]")
        box.clear()
        box.send_keys(question.get(name, ""))
    browser.find_element("css selector", ".question button").click()
    until(lambda: _textOf(browser, "#answer") != before)
    return _textOf(browser, "#answer"), _textOf(browser, "#limits") + _textOf(browser, "#matching")


def _textOf(browser: Any, selector: str) -> str:
    return str(browser.find_element("css selector", selector).text)


class StatusPageTests(SynchronousTestCase):
    """An operator sees what goes on."""

    def test_changes(self) -> None:
        """Values change from look to look, and are drawn."""
        first, second = findings().values
        self.assertEqual([each.split()[0] for each in first], [each.split()[0] for each in second])
        self.assertNotEqual(first, second)
        self.assertGreaterEqual(findings().pathCount, 8)

    def test_clients(self) -> None:
        """The clients over a quota are there, with the quota and how far they are over it."""
        text = findings().texts["#clients"]
        for name in PRODUCERS:
            self.assertIn(name, text)
        self.assertRegex(text, r"producer_byte_rate=40K")
        self.assertRegex(text, r"\d+ %")

    def test_hostile(self) -> None:
        """What a client calls itself is text and nothing else, and does not turn round what is beside it."""
        self.assertEqual(findings().hostile, [True, 0, "admission"])

    def test_explain(self) -> None:
        """
        Why a client is slow is answered in place, in words and a table: one that is throttled, one that was never
        here, all of an address, and what makes no sense.
        """
        (slow, limits), (never, _), (address, clients), (nonsense, none) = findings().answers
        # Its limit is told for as long as something is counted for it.
        throttled = r"throttled by client-bytes( \(producer_byte_rate\))? for another"
        self.assertRegex(slow, rf"^client id {BACKFILL}, user ANONYMOUS: {throttled}")
        self.assertRegex(limits, r"client-bytes producer_byte_rate=40K each client id .*\d+ %")
        self.assertIn("client id nobody, user ANONYMOUS: not known. It has no connection", never)
        self.assertRegex(address, r"^\d clients match, and the slowest is throttled for another .*Name one to see its")
        self.assertRegex(clients, rf"(?m)^{BACKFILL} ANONYMOUS, 127.0.0.1 .* m?s no$")
        self.assertIn("'nonsense' is not an address; write 192.0.2.1 or 2001:db8::1", nonsense)
        self.assertEqual(none, "")

    def test_shared(self) -> None:
        """Of a limit that is shared it is told how it is shared, and what is used here and elsewhere."""
        words, limits = findings().shared
        self.assertTrue(words.endswith(" Limits are shared by 2 servers; another was heard 250 ms ago."), words)
        self.assertRegex(limits, r"producer_byte_rate=40K, of which this server enforces 1/2: 20K each client id")
        self.assertIn(" 3K (1K here, 2K elsewhere) ", limits)

    def test_help(self) -> None:
        """Bars have a mark at 100 %, and reasons say what they mean, to those who cannot point at them as well."""
        self.assertGreaterEqual(findings().marked, len(PRODUCERS))
        self.assertEqual([each.strip() for each in findings().tooltips], ["quota"])
        self.assertIn("quota The client is over its quota", findings().texts["#reasons"].replace("\n", " "))

    def test_stays(self) -> None:
        """What is marked to be copied stays so, although the page is drawn anew each second."""
        marked, later = findings().selected
        self.assertEqual(marked, TOPIC)
        self.assertEqual(later, TOPIC)

    def test_past(self) -> None:
        """An operator who opens the page sees what was before."""
        samples, points = findings().remembered
        self.assertGreaterEqual(samples, 2)
        self.assertGreaterEqual(points, samples)

    def test_groups(self) -> None:
        """Groups are there with their states and their lag."""
        self.assertRegex(findings().texts["#groups"], rf"{GROUP}\s+(Stable|\w+Rebalance)\s+\d+\s+\d+\s+[\d.]+K?")

    def test_topics(self) -> None:
        """Topics are there with what they use of the disk, and how much is free."""
        self.assertRegex(findings().texts["#topics"], r"(?m)^\S+\s+\d+\s+[\d.]+ [KMG]?i?B$")
        self.assertRegex(findings().texts["#topics-count"], r"\d of \d, the largest; .* in all, .* of .* free")

    def test_connections(self) -> None:
        """Connections are there with what they hold, and why they are not read."""
        text = findings().texts["#connections"]
        self.assertRegex(text, r"127\.0\.0\.1:\d+")
        self.assertIn("KiB", text)

    def test_facts(self) -> None:
        """The state of the broker is there in a word, with what it is."""
        self.assertEqual(findings().texts["#state"], "ok")
        self.assertRegex(findings().texts["#facts"], r"connections\s+\d+ of 10000")

    def test_noErrors(self) -> None:
        """The browser has nothing to complain about."""
        self.assertEqual(findings().errors, [])

    def test_onlyItself(self) -> None:
        """The page asks nobody but the broker, and for nothing but its parts and the snapshot."""
        found = findings()
        paths = set()
        for url in found.requested:
            self.assertTrue(url.startswith(found.status + "/"), url)
            paths.add(urlsplit(url).path)
        parts = ("page.css", "page.js", "plots.js", "icon.svg", "status.json", "history", "explain")
        self.assertLessEqual(paths, {f"/{each}" for each in parts})
        self.assertLessEqual({"/page.css", "/page.js", "/plots.js", "/status.json"}, paths)

    def test_fits(self) -> None:
        """Nothing needs scrolling sideways, be the window wide or narrow."""
        for width, widths in findings().widths.items():
            self.assertLessEqual(max(widths), width)

    def test_gone(self) -> None:
        """A broker that does not answer any more is missed at once, in words."""
        self.assertTrue(findings().gone.startswith("no answer: The server has not answered since"), findings().gone)


class PicturedPageTests(SynchronousTestCase):
    """The pictures of the manual."""

    @skipUnless(arePicturesTaken(), "make pictures runs it")
    def test_taken(self) -> None:
        """They are of a page with all clients over their quotas, and with some minutes to plot."""
        broker = loadedBroker()
        broker.start()
        try:
            with clients(broker.address), openBrowser(WIDE) as browser:
                browser.get(broker.status)
                until(lambda: all(name in _textOf(browser, "#clients") for name in (*PRODUCERS, GROUP)))
                time.sleep(_PICTURED_SECONDS)
                takePictures(browser, "status")
                self.assertEqual(consoleErrors(browser), [])
        finally:
            broker.remove()


class AnyServerTests(TestCase):
    """The page of a server that knows no Kafka."""

    @inlineCallbacks
    def test_page(self) -> Any:
        """It has what the server has, leaves out the rest, and complains about nothing."""
        factory = wrapFactory(Factory.forProtocol(Echo), pool="bounded:1MiB", quota="client-bytes:produce=1M")
        factory.control.enforceShare(0.5, 0.0)
        ports = [reactor.listenTCP(0, each, interface="127.0.0.1") for each in (factory, statusSite(factory))]
        try:
            address, status = (f"127.0.0.1:{port.getHost().port}" for port in ports)
            shown, plots, errors, facts, limits = yield deferToThread(self.look, address, f"http://{status}")
        finally:
            yield gatherResults([maybeDeferred(port.stopListening) for port in ports])
        over = "Clients over a quota now or in the last ten seconds"
        self.assertEqual(shown, ["The last hour", "Why is a client slow?", over, "Connections by memory held 1 of 1"])
        self.assertEqual(
            plots,
            [
                *("Memory pool", "Where memory is", "Bytes a second", "Connections not read", "Clients over a quota"),
                "Process memory",
            ],
        )
        self.assertEqual(errors, [])
        self.assertRegex(facts, r"enforces\s+1/2 of each limit")
        self.assertIn("received_byte_rate=1M, of which this server enforces 1/2: 500K", limits)

    def look(self, address: str, status: str) -> tuple[Sequence[str], Sequence[str], Sequence[str], str, str]:
        """
        While a client is connected: the titles of what is shown and of the plots, what the
        browser complains of, the facts, and the limits of a client.
        """
        host, _, port = address.partition(":")
        with openBrowser(WIDE) as browser, create_connection((host, int(port)), PATIENCE_SECONDS):
            browser.get(status)
            until(lambda: "1 of 1" in _textOf(browser, "#connections-count"))
            sections = browser.execute_script(_SECTIONS)
            plots, facts = browser.execute_script(_PLOTS), _textOf(browser, "#facts")
            _, limits = _ask(browser, {"clientId": "nobody"})
            return sections, plots, consoleErrors(browser), facts, limits
