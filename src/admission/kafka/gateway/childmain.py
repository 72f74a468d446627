# -*- test-case-name: tests.clients.gateway.test_processes -*-
"""
The main program of one of several processes of a gateway; their parent runs it.
"""

from __future__ import annotations

import signal
import sys


def main() -> int:
    # The parent passes on reloads and what a terminal tells both, so signals are ignored before all else is imported.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, lambda *_: None)
    from .childprocess import serve

    return serve(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
