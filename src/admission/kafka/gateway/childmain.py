# -*- test-case-name: tests.clients.gateway.test_processes -*-
"""
What a process of a gateway of several begins with, which is its parent's to run.
"""

from __future__ import annotations

import signal
import sys


def main() -> int:
    # The parent passes on what a terminal tells them both, and reloads; all else is imported after that.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, lambda *_: None)
    from .childprocess import serve

    return serve(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
