"""
Kroxylicious, a proxy for Apache Kafka in Java, to be measured beside the gateway; fetched from Maven Central once.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import frozen

from tests.kit.apachekafka import fetched
from tests.kit.brokerprocess import DYING_WITH_US, PATIENCE_SECONDS, freePort

VERSION = "0.12.0"

NODES = 4
"""Nodes have the ids 0 to 3, each at a port behind the first."""

# Its own command is not at Maven Central.
_MAIN = """\
import io.kroxylicious.proxy.KafkaProxy;
import io.kroxylicious.proxy.config.ConfigParser;
import io.kroxylicious.proxy.internal.config.Features;

public class Main {
    public static void main(String[] arguments) throws Exception {
        ConfigParser parser = new ConfigParser();
        try (KafkaProxy proxy =
                new KafkaProxy(parser, parser.parseConfiguration(arguments[0]), Features.defaultFeatures())) {
            proxy.startup();
            proxy.block();
        }
    }
}
"""


@frozen
class Kroxylicious:
    """
    One that runs.

    @ivar pid: its process.
    @ivar port: where clients begin; node N is at C{port + 1 + N}.
    """

    pid: int
    port: int


@contextmanager
def kroxylicious(upstream: str) -> Iterator[Kroxylicious]:
    """
    Run one without filters for the duration of a block; wait for it by connecting.

    @raise SkipTest: as L{fetched} does.
    """
    classPath = fetched("Kroxylicious", f"kroxylicious-{VERSION}", [f"io.kroxylicious:kroxylicious-runtime:{VERSION}"])
    port = freePort(count=NODES + 1)
    node = {
        "bootstrapAddress": f"127.0.0.1:{port}",
        "nodeIdRanges": [{"name": "nodes", "start": 0, "end": NODES - 1}],
    }
    cluster = {
        "name": "cluster",
        "targetCluster": {"bootstrapServers": upstream},
        "gateways": [{"name": "gateway", "portIdentifiesNode": node}],
    }
    with TemporaryDirectory(prefix="admission-benchmark-") as directory:
        main = Path(directory, "Main.java")
        main.write_text(_MAIN, "ascii")
        subprocess.run(["javac", "-cp", classPath, str(main)], check=True, timeout=PATIENCE_SECONDS)
        command = [
            "java",
            "-Xmx3g",
            "-cp",
            f"{directory}:{classPath}",
            "Main",
            json.dumps({"virtualClusters": [cluster]}),
        ]
        process = subprocess.Popen(
            [*DYING_WITH_US, *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            yield Kroxylicious(process.pid, port)
        finally:
            process.kill()
            process.wait(PATIENCE_SECONDS)
