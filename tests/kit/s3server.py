"""An S3 server on this machine, for tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kit.brokerprocess import DYING_WITH_US, ENVIRONMENT, PATIENCE_SECONDS


@contextmanager
def s3Server() -> Iterator[dict[str, str]]:
    """
    A server without buckets.

    @return: the environment variables with which it is found.
    """
    with tempfile.TemporaryFile() as log:
        command = [*DYING_WITH_US, sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1"]
        process = subprocess.Popen([*command, "-p", "0"], stdout=log, stderr=log, env=ENVIRONMENT)
        try:
            yield {
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": _addressOf(process, log.fileno()),
            }
        finally:
            process.kill()
            process.wait()


def copyTo(directory: str | Path, bucket: str, settings: dict[str, str]) -> None:
    """
    Copy all files of a directory into a bucket, which is made.

    @param settings: of L{s3Server}.
    """
    from pyarrow.fs import LocalFileSystem, S3FileSystem, copy_files

    storage = S3FileSystem(
        access_key=settings["AWS_ACCESS_KEY_ID"],
        secret_key=settings["AWS_SECRET_ACCESS_KEY"],
        region=settings["AWS_REGION"],
        endpoint_override=settings["AWS_ENDPOINT_URL"],
        allow_bucket_creation=True,
    )
    storage.create_dir(bucket)
    copy_files(str(directory), bucket, LocalFileSystem(), storage)


def _addressOf(process: subprocess.Popen[bytes], fileno: int) -> str:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        text = os.pread(fileno, 1 << 16, 0).decode("utf-8", "replace")
        found = re.search(r"Running on (http://127\.0\.0\.1:[0-9]+)", text)
        if found is not None:
            return found[1]
        if process.poll() is not None:
            raise AssertionError(f"the server has ended: {text}")
        time.sleep(0.05)
    raise AssertionError("the server does not say where it is")
