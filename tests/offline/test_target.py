"""L{admission.shipping.target}"""

from __future__ import annotations

import os
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from admission.shipping.target import Target, TargetRefused, withoutSecrets


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
        """A URL that no file system has is refused in a sentence, without what is secret in it."""
        for url, words in (
            ("ftp://host/x", "ftp"),
            ("recording", "s3://BUCKET/PREFIX"),
            ("s3://user:word@bucket/x?foo=secret", "foo"),
            ("s3://user:word@/x?region=x", "s3://BUCKET/PREFIX"),
            ("file:///", "names no bucket or directory"),
            ("file://host/x", "file:///DIRECTORY"),
            ("hdfs://localhost:1/x", "JAVA_HOME"),
        ):
            said = str(self.assertRaises(TargetRefused, Target.open, url))
            self.assertIn(words, said)
            self.assertNotIn("\n", said)
            self.assertFalse("word" in said or "=secret" in said, said)

    def test_withoutSecrets(self) -> None:
        """Credentials and options are not shown."""
        self.assertEqual(withoutSecrets("s3://user:word@bucket/x?access=1#2"), "s3://bucket/x")
        self.assertEqual(withoutSecrets("s3://[user:word@bucket/x"), "the URL")
