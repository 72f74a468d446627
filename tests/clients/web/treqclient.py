"""A process that asks a site by treq: what the argument says, by connections that are kept."""

from __future__ import annotations

import json
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import treq
from attrs import asdict
from twisted.internet.task import react
from twisted.web.client import FileBodyProducer
from twisted.web.iweb import UNKNOWN_LENGTH

from tests.clients.web.siteclients import Answer, Case


async def main(reactor: Any) -> None:
    """Ask for everything."""
    port, files, asked = json.loads(sys.argv[1])
    answers = []
    for each in asked:
        case = Case(**each)
        body: Any = None
        if case.body is not None:
            content = (Path(files) / case.body).read_bytes()
            body = FileBodyProducer(BytesIO(content))
            if case.isChunked:
                body.length = UNKNOWN_LENGTH
        response = await treq.request(
            case.method,
            f"http://localhost:{port}{case.path}",
            headers=dict(case.headers),
            data=body,
            allow_redirects=False,
            reactor=reactor,
        )
        headers = [
            (name.decode(), value.decode()) for name, values in response.headers.getAllRawHeaders() for value in values
        ]
        answers.append(asdict(Answer.of(response.code, headers, await response.content())))
    print(json.dumps(answers))


if __name__ == "__main__":
    react(main)
