"""L{admission.commands.recordingcommand}"""

from __future__ import annotations

import shlex
from io import StringIO

from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from admission.commands import recordingcommand
from admission.commands.console import CommandFailed
from admission.commands.recordingcommand import RecordingOptions, run


def parsed(line: str) -> RecordingOptions:
    """The options of a command line."""
    options = RecordingOptions()
    options.parseOptions(shlex.split(line))
    return options


class OptionsTests(SynchronousTestCase):
    """C{admission recording ship}"""

    def test_values(self) -> None:
        """Times are in seconds, and sizes in bytes."""
        given = parsed("ship here s3://b/p --follow --every 1m --remove --keep 24h --max-local 10GiB --drop").subOptions
        self.assertEqual((given["directory"], given["url"]), ("here", "s3://b/p"))
        self.assertEqual((given["every"], given["keep"], given["max-local"]), (60.0, 86400.0, 10 << 30))
        self.assertEqual((given["follow"], given["remove"], given["drop"], given["timeout"]), (1, 1, 1, 60.0))

    def test_refused(self) -> None:
        """Mistakes are told with the option and the remedy; an option that would have no effect is one."""
        for line, words in (
            ("", "say what to do: ship"),
            ("ship", "ship DIRECTORY s3://BUCKET/PREFIX"),
            ("ship here", "ship DIRECTORY s3://BUCKET/PREFIX"),
            ("ship here s3://b/p more", "ship DIRECTORY s3://BUCKET/PREFIX"),
            ("ship here s3://b/p --keep 3h", "--remove"),
            ("ship here s3://b/p --drop", "--max-local"),
            ("ship here s3://b/p --remove --keep soon", "--keep: 'soon' is not a duration"),
            ("ship here s3://b/p --max-local much", "--max-local: 'much' is not a size"),
            ("ship here s3://b/p --every 0s", "--every 0s"),
            ("ship here s3://b/p --timeout 0s", "--timeout 0s"),
        ):
            self.assertIn(words, str(self.assertRaises(UsageError, parsed, line)))


class RunTests(SynchronousTestCase):
    """L{run}"""

    def _failure(self, line: str) -> str:
        return str(self.assertRaises(CommandFailed, run, parsed(line), StringIO(), StringIO()))

    def test_lacking(self) -> None:
        """Without pyarrow it says what brings it."""
        self.patch(recordingcommand, "lacking", lambda what, *modules: f"{what} needs {modules[0]}")
        self.assertEqual(self._failure("ship here s3://b/p"), "recording ship needs pyarrow")

    def test_missing(self) -> None:
        """A directory that is not there is named."""
        self.patch(recordingcommand, "lacking", lambda what, *modules: "")
        self.assertIn("/nowhere is no directory", self._failure("ship /nowhere s3://b/p"))
