"""
Try the wheel that is installed in this environment, beside kafka-python: the command, the doctor, and a broker that a
client writes to and reads from.

    python .ci/trywheel.py pure|compiled
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kafka import KafkaConsumer, KafkaProducer

PATIENCE_SECONDS = 60
# None of the checkout is to be found by what runs here, and twistd looks where it is started.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def freePort() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def ask(directory: str, *arguments: str) -> str:
    """
    What the command writes.
    """
    command = [program("admission"), *arguments]
    return subprocess.run(
        command, cwd=directory, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_SECONDS
    ).stdout


def examine(kind: str, directory: str, server: list[str]) -> None:
    """
    Have the doctor say that all is well, and whether the modules are compiled.
    """
    findings = {each["check"]: each for each in json.loads(ask(directory, "doctor", *server, "--json"))}
    failures = [each for each in findings.values() if each["level"] == "fail"]
    assert not failures, failures
    assert findings["compiled"]["level"] == {"pure": "absent", "compiled": "ok"}[kind], findings["compiled"]


def exchange(port: int) -> None:
    """
    Write a record to a broker, and read it.
    """
    address = f"127.0.0.1:{port}"
    producer = KafkaProducer(bootstrap_servers=address)
    producer.send("tried", b"a record").get(PATIENCE_SECONDS)
    producer.close()
    consumer = KafkaConsumer(
        "tried", bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=PATIENCE_SECONDS * 1000
    )
    assert next(consumer).value == b"a record"
    consumer.close()


def serve(port: int, directory: str, server: list[str]) -> None:
    """
    Have a broker serve a client.
    """
    command = [program("twistd"), "-n", "--pidfile=", "admission", *server]
    with subprocess.Popen(command, cwd=directory, env=ENVIRONMENT) as broker:
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except ConnectionRefusedError:
                    assert broker.poll() is None and time.monotonic() < deadline, "the broker does not serve"
                    time.sleep(0.1)
            exchange(port)
        finally:
            broker.terminate()
        # twistd ends itself once more by the signal that ended it.
        assert broker.wait(PATIENCE_SECONDS) == -signal.SIGTERM, f"the broker has ended with {broker.returncode}"


def main(kind: str) -> None:
    port = freePort()
    server = ["--listen", f"tcp:{port}:interface=127.0.0.1", "--data", "data"]
    with tempfile.TemporaryDirectory() as directory:
        print(ask(directory, "--version"), end="", flush=True)
        examine(kind, directory, server)
        serve(port, directory, server)


main(sys.argv[1])
