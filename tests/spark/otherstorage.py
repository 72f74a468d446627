"""
Reads recordings from a directory and from its copy in other storage, and prints what differs.  The environment has the
settings of that storage; Java and Spark's workers keep the environment that there was at their start, so this is a
process of its own.

Arguments are the directory, its URL, and a directory for results.  There are two recordings in it: C{a part}, of which
not all is sealed, is read, and C{a whole} is evaluated.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame

from admission.cli import main
from admission.offline import Recording
from admission.offline.evaluation import EVALUATION
from admission.offline.outputplaces import MAX_RESULT_BYTES
from admission.offline.outputtables import AGGREGATE, namesOf
from admission.offline.report.writing import REPORT
from admission.recording.places import namesIn, readWhole
from admission.recording.tables import TABLES
from tests.kit.sparksession import sharedSession


def differences(local: DataFrame, remote: DataFrame) -> int:
    """How many rows only one of them has."""
    return local.exceptAll(remote).count() + remote.exceptAll(local).count()


def streamed(place: str, name: str) -> DataFrame:
    """What a stream has read in the end."""
    rows = sharedSession().readStream.format("admission").load(place)
    rows.writeStream.format("memory").queryName(name).trigger(availableNow=True).start().awaitTermination()
    return sharedSession().table(name)


def evaluated(place: str, out: Path) -> dict[str, str]:
    """The results of a command, but for what tells the recordings apart."""
    status = main(["evaluate", place, "--out", str(out), "--candidate", "client-bytes:produce=8KiB"])
    results = {path.name: path.read_text() for path in out.glob("*.csv")}
    facts = json.loads(out.joinpath("evaluation.json").read_text())
    return {**results, "evaluation": json.dumps({**facts, "recording": ""}), "status": str(status)}


def stored(url: str, out: str, there: Path) -> list[str]:
    """What differs between results in other storage and the same ones in a directory."""
    main(["aggregate", url, "--out", out])
    main(["report", out])
    names = [f"{name}.{suffix}" for name in namesOf(AGGREGATE) for suffix in ("parquet", "csv")]
    differing = [
        name for name in names if readWhole(f"{out}/{name}", MAX_RESULT_BYTES) != there.joinpath(name).read_bytes()
    ]
    return [*differing, *({REPORT, EVALUATION} - namesIn(out))]


def compare(directory: str, url: str, out: str) -> dict[str, object]:
    """Read all of it in each way."""
    session = sharedSession()
    part, copied = f"{directory}/a part", f"{url}/a part"
    found: dict[str, object] = {}
    for table in TABLES:
        source = session.read.format("admission").option("table", table.name)
        local, remote = source.load(f"file://{part}"), source.load(copied + "/")
        found[table.name] = [local.count(), differences(local, remote)]
        found[f"{table.name} of Recording"] = differences(local, getattr(Recording.open(session, copied), table.name)())
    stream = streamed(part, "here")
    found["stream"] = [stream.count(), differences(stream, streamed(copied, "there"))]
    found["problems"] = session.read.format("admission").option("table", "problems").load(copied).count()
    here, there = evaluated(f"{directory}/a whole", Path(out, "here")), evaluated(f"{url}/a whole", Path(out, "there"))
    found["results"] = [
        len(here),
        sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name)),
    ]
    found["stored"] = stored(f"{url}/a whole", f"{url}/results", Path(out, "there"))
    return found


if __name__ == "__main__":
    told = compare(*sys.argv[1:])
    print(json.dumps(told), file=sys.__stdout__)
