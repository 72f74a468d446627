"""What is asked of a site, and clients that ask it: curl, treq, and one of HTTP/2 that asks everything at once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from attrs import asdict, frozen
from twisted.trial.unittest import SkipTest

from tests.clients.web.http2client import Http2Client
from tests.kit.brokerprocess import DYING_WITH_US, ENVIRONMENT, PATIENCE_SECONDS

LARGE_BYTES: Final = 64 << 20
_OF_THE_MOMENT: Final = frozenset({"date"})


@frozen
class Case:
    """
    A request, and the status that it should be answered with.

    @ivar body: the name of a file.
    @ivar isChunked: whether nobody says how long it is.
    """

    method: str
    path: str
    status: int = 200
    headers: Mapping[str, str] = {}
    body: str | None = None
    isChunked: bool = False


@frozen
class Answer:
    """
    What a client was told.

    @ivar body: its length and digest.
    """

    status: int
    headers: Mapping[str, Sequence[str]]
    body: str

    @classmethod
    def of(cls, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> Answer:
        """Without what is different each time."""
        byName: dict[str, list[str]] = {}
        for name, value in headers:
            if name.lower() not in _OF_THE_MOMENT:
                byName.setdefault(name.lower(), []).append(value)
        return cls(status, byName, f"{len(body)} {sha256(body).hexdigest()}")


_CURL_OPTIONS: Final = ("--silent", "--show-error", "--insecure", "--path-as-is")

_FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}
_MULTIPART: Final = {"Content-Type": "multipart/form-data; boundary=x"}

CASES: Final = {
    "short": Case("GET", "/app/hello/alice?a=b", headers={"User": "bob"}),
    "head": Case("HEAD", "/static/large"),
    "not there": Case("GET", "/static/missing", 404),
    "no such route": Case("GET", "/app/nothing", 404),
    "no such method": Case("PUT", "/app/form", 405, body="form"),
    "fails": Case("GET", "/app/fails", 500),
    "elsewhere": Case("GET", "/static/directory", 302),
    "range": Case("GET", "/static/large", 206, {"Range": "bytes=100-199"}),
    "pieces": Case("GET", "/app/pieces"),
    "form": Case("POST", "/app/form", headers=_FORM, body="form"),
    "multipart": Case("POST", "/app/form", headers=_MULTIPART, body="multipart"),
    "upload": Case("PUT", "/app/upload", body="upload"),
    "in chunks": Case("PUT", "/app/upload", body="upload", isChunked=True),
    "asks first": Case("PUT", "/app/upload", headers={"Expect": "100-continue"}, body="form"),
    "script": Case("GET", "/wsgi/path?query", 201),
    "form for a script": Case("POST", "/wsgi/", 201, _FORM, "form"),
    "produced": Case("GET", "/produced/8000000"),
    "download": Case("GET", "/static/large"),
}


def makeFiles(directory: Path) -> None:
    """Make the files that cases name."""
    (directory / "directory").mkdir()
    with (directory / "large").open("wb") as file:
        file.truncate(LARGE_BYTES)
    (directory / "form").write_bytes(b"colour=red&shape=round&colour=blue")
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    (directory / "multipart").write_bytes(head + bytes(range(256)) * 1000 + b"\r\n--x--\r\n")
    (directory / "upload").write_bytes(bytes(range(256)) * (20 << 12))


@frozen
class Site:
    """
    Where a site is.

    @ivar files: the directory of its files.
    """

    port: int
    tlsPort: int
    files: Path

    def read(self, name: str) -> bytes:
        """What is in a file."""
        return (self.files / name).read_bytes()


Client = Callable[[Site, Mapping[str, Case]], dict[str, Answer]]


class Curl:
    """Runs curl for each request."""

    def __init__(self, *options: str, isTLS: bool = False) -> None:
        self._options = options
        self._isTLS = isTLS
        program = shutil.which("curl")
        if program is None:
            raise SkipTest("curl is not installed")
        self._program = program
        if "--http2" in options and "HTTP2" not in self.run("--version").split():
            raise SkipTest("this curl speaks no HTTP/2")

    def __call__(self, site: Site, cases: Mapping[str, Case]) -> dict[str, Answer]:
        """Ask one after another."""
        return {name: self._ask(site, case) for name, case in cases.items()}

    def url(self, site: Site, path: str) -> str:
        """Where that is."""
        return f"https://localhost:{site.tlsPort}{path}" if self._isTLS else f"http://localhost:{site.port}{path}"

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Start it."""
        command = [*DYING_WITH_US, self._program, *_CURL_OPTIONS, *self._options, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *arguments: str) -> str:
        """
        Run it.

        @return: what it has printed.
        """
        command = [self._program, *_CURL_OPTIONS, *self._options, *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        if ended.returncode:
            raise AssertionError(f"{command} ended with {ended.returncode}: {ended.stderr}")
        return ended.stdout

    def _ask(self, site: Site, case: Case) -> Answer:
        head, body = site.files / "answer-head", site.files / "answer-body"
        body.unlink(missing_ok=True)
        # It asks first if it sends much, unless it is told not to.
        headers = {"Expect": "", **case.headers}
        options = ["--head"] if case.method == "HEAD" else ["--request", case.method]
        if case.body is not None:
            headers.setdefault("Content-Type", "")
            upload = site.files / case.body
            if case.isChunked:
                # It does not know how long it is what it reads from a pipe, for which HTTP/2 has no word.
                headers["Transfer-Encoding"] = "chunked"
            options += [
                "--upload-file" if case.isChunked else "--data-binary",
                f"{'' if case.isChunked else '@'}{upload}",
            ]
        for name, value in headers.items():
            options += ["--header", f"{name}: {value}"]
        self.run("--dump-header", str(head), "--output", str(body), *options, self.url(site, case.path))
        *_, last = head.read_text().strip().split("\n\n")
        first, *lines = last.splitlines()
        answered = [(name, value) for name, _, value in (each.partition(": ") for each in lines)]
        found = body.read_bytes() if body.exists() and case.method != "HEAD" else b""
        return Answer.of(int(first.split()[1]), answered, found)


def askByTreq(site: Site, cases: Mapping[str, Case]) -> dict[str, Answer]:
    """Ask one after another, in a process of its own, by connections that are kept."""
    asked = json.dumps([site.port, str(site.files), [asdict(each) for each in cases.values()]])
    command = [*DYING_WITH_US, sys.executable, "-m", "tests.clients.web.treqclient", asked]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, env=ENVIRONMENT)
    if ended.returncode:
        raise AssertionError(ended.stderr)
    return {name: Answer(**each) for name, each in zip(cases, json.loads(ended.stdout), strict=True)}


def askAtOnce(site: Site, cases: Mapping[str, Case]) -> dict[str, Answer]:
    """Ask everything at once, in streams of one connection of HTTP/2."""
    client = Http2Client(site.tlsPort)
    numbers: dict[str, int] = {}
    for name, case in cases.items():
        body = None if case.body is None else site.read(case.body)
        headers = [(key.lower(), value) for key, value in case.headers.items()]
        if body is not None and not case.isChunked:
            headers.append(("content-length", str(len(body))))
        numbers[name] = client.ask(case.method, case.path, headers, body)
    client.run()
    client.close()
    answers = {}
    for name, number in numbers.items():
        stream = client.streams[number]
        if not stream.isEnded or stream.status is None:
            raise AssertionError(f"{name}: {stream.status}, and reset with {stream.reset}")
        answers[name] = Answer.of(stream.status, [*stream.headers], bytes(stream.data))
    return answers
