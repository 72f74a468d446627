"""L{admission.shipping.target}"""

from __future__ import annotations

import os
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from admission.shipping.target import Target, TargetRefused


class TargetTests(SynchronousTestCase):
    """L{Target}"""

    def test_put(self) -> None:
        """A file is there whole, in place of one that was, and nothing else is."""
        root = Path(self.mktemp()).absolute()
        target = Target.open(f"{root.as_uri()}/")
        self.assertTrue(target.isEmpty())
        for content in (b"first", b"", b"second and longer"):
            target.put("a/b/name.parquet", content)
            self.assertEqual(target.sizesBytes(["a/b/name.parquet", "a/b/other", "a/b"]), [len(content), None, None])
        self.assertEqual(target.read("a/b/name.parquet", 6), b"second")
        self.assertIsNone(target.read("other", 6))
        self.assertEqual(os.listdir(root / "a" / "b"), ["name.parquet"])
        self.assertFalse(target.isEmpty())

    def test_hidden(self) -> None:
        """What readers do not see leaves a target empty."""
        root = Path(self.mktemp()).absolute()
        target = Target.open(root.as_uri())
        target.put("_mark", b"x")
        self.assertTrue(target.isEmpty())

    def test_refused(self) -> None:
        """What no storage has is refused in a sentence, without what is secret in it."""
        for url, words in (
            ("ftp://host/x", "ftp://host/x is in storage of an unknown kind"),
            ("s3://user:word@bucket/x", "a URL with a password would be stored"),
            ("s3://bucket/x?access=secret", "s3://bucket/x?...: leave out what is after the ?: credentials and"),
            ("s3://", "names no bucket or directory"),
            ("file:///", "file:/// names no directory"),
            ("hdfs://nowhere/x", "HADOOP_CONF_DIR"),
        ):
            said = str(self.assertRaises(TargetRefused, Target.open, url))
            self.assertIn(words, said)
            self.assertNotIn("\n", said)
            self.assertFalse("word@" in said or "=secret" in said, said)

    def test_path(self) -> None:
        """A path is a directory of this machine."""
        self.assertEqual(Target.open("archive").path, os.path.abspath("archive"))
