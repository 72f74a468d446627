"""Tests for L{admission.tlsfailure}."""

from __future__ import annotations

from OpenSSL.SSL import Error
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from admission.tlsfailure import whyTlsFailed


class WhyTests(SynchronousTestCase):
    """L{whyTlsFailed} has words for what OpenSSL raises."""

    def test_words(self) -> None:
        """All that OpenSSL says; nothing where it says nothing, or where TLS was not the reason."""
        several = Error([("SSL routines", "", "wrong version number"), ("SSL routines", "", "internal error")])
        self.assertEqual(whyTlsFailed(Failure(several)), "TLS failed: wrong version number, internal error")
        for other in (Error(), Error("text"), ConnectionDone()):
            self.assertIsNone(whyTlsFailed(Failure(other)))

    def test_unverified(self) -> None:
        """OpenSSL does not say which of the usual reasons it was, and sometimes more than anyone wants to know."""
        unverified = ("SSL routines", "", "certificate verify failed")
        for errors in ([unverified], [("Provider routines", "", "provider signature failure"), unverified]):
            self.assertEqual(
                whyTlsFailed(Failure(Error(errors))),
                "TLS failed: certificate verify failed (it has expired, or no authority that is trusted has signed it)",
            )
