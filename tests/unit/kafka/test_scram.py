"""Tests for L{admission.kafka.scram}."""

from __future__ import annotations

import base64
import hashlib
import hmac

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.scram import HASHES, ScramError, ScramExchange, ScramSecret

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SECRET = ScramSecret.ofPassword("SCRAM-SHA-256", b"pencil", 4096, SALT)

# The example of RFC 7677, section 3.
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def exchangeOf(first: bytes) -> ScramExchange:
    """An exchange that has begun with the message C{first}."""
    return ScramExchange("SCRAM-SHA-256", first, SERVER_NONCE)


def proved(before: bytes, final: bytes) -> bytes:
    """
    The message C{final} with the proof that the user has for it.

    @param before: what was said before it, as it is signed.
    """
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096)
    clientKey = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(clientKey).digest(), before + b"," + final, "sha256")
    proof = bytes(left ^ right for left, right in zip(clientKey, signature, strict=True))
    return final + b",p=" + base64.b64encode(proof)


class ScramSecretTests(SynchronousTestCase):
    """L{ScramSecret} knows its password, and does not tell it."""

    def test_isPassword(self) -> None:
        """A secret fits the password that it was made of, and no other."""
        for mechanism in HASHES:
            secret = ScramSecret.ofPassword(mechanism, b"pencil", 4096, b"salt")
            self.assertTrue(secret.isPassword(b"pencil"))
            for other in (b"Pencil", b"pencil ", b""):
                self.assertFalse(secret.isPassword(other))

    def test_repr(self) -> None:
        """Neither key is in the C{repr}."""
        self.assertNotIn("Key", repr(SECRET))
        self.assertNotIn(repr(SECRET.storedKey), repr(SECRET))


class ScramExchangeTests(SynchronousTestCase):
    """L{ScramExchange} lets in who knows the password."""

    def test_example(self) -> None:
        """The example of RFC 7677 comes out to the letter."""
        exchange = exchangeOf(FIRST)
        self.assertEqual(exchange.username, "user")
        self.assertEqual(exchange.challenge(SECRET), CHALLENGE)
        self.assertTrue(exchange.isProof(FINAL))
        self.assertEqual(exchange.signature(), SIGNATURE)

    def test_names(self) -> None:
        """Commas and equals signs in names are escaped; what else looks like an escape is refused."""
        self.assertEqual(exchangeOf(b"n,,n=a=2Cb=3Dc=2C,r=x").username, "a,b=c,")
        self.assertEqual(exchangeOf("y,,n=zoë,r=x".encode()).username, "zoë")
        for name in (b"a=b", b"a=2c", b"a=", b"a=3"):
            self.assertRaisesRegex(ScramError, "writes = as =3D", exchangeOf, b"n,,n=" + name + b",r=x")

    def test_authorizationId(self) -> None:
        """A client may say twice who it is, but not act as somebody else."""
        exchange = exchangeOf(b"n,a=us=2Cer,n=us=2Cer,r=x")
        self.assertEqual(exchange.username, "us,er")
        self.assertRaisesRegex(ScramError, "act as another", exchangeOf, b"n,a=root,n=user,r=x")

    def test_extensions(self) -> None:
        """Extensions that may be ignored are, in either message."""
        exchange = exchangeOf(b"n,,n=user,r=x,tokenauth=true")
        challenge = exchange.challenge(SECRET)
        final = b"c=biws,r=x" + SERVER_NONCE.encode() + b",extension=1"
        self.assertTrue(exchange.isProof(proved(b"n=user,r=x,tokenauth=true," + challenge, final)))

    def test_otherExchange(self) -> None:
        """
        A client that knows the password, but signs another nonce or another beginning of the exchange than there was,
        proves nothing.
        """
        nonce = b"x" + SERVER_NONCE.encode()
        for final, isProof in (
            (b"c=biws,r=" + nonce, True),
            (b"c=biws,r=" + nonce + b"x", False),
            (b"c=biws,r=x", False),
            (b"c=eSws,r=" + nonce, False),
        ):
            exchange = exchangeOf(b"n,,n=user,r=x")
            challenge = exchange.challenge(SECRET)
            self.assertEqual(exchange.isProof(proved(b"n=user,r=x," + challenge, final)), isProof)

    def test_malformedFirst(self) -> None:
        """
        What is no first message is refused: channel binding and mandatory
        extensions, which are not offered, included.
        """
        for message in (
            *(b"", b"n", b"n,,", b"n,,n=user", b"n,,n=,r=x", b"n,,n=user,r=", b"n,,r=x,n=user", b"x,,n=user,r=x"),
            *(b"p=tls-unique,,n=user,r=x", b"n,,m=mandatory,n=user,r=x", b"n,,n=\xff,r=x", b"\0user\0secret"),
        ):
            self.assertRaises(ScramError, exchangeOf, message)

    def test_malformedFinal(self) -> None:
        """A final message that is not quite one proves nothing."""
        proof = FINAL.rpartition(b",p=")[2]
        for message in (
            b"",
            FINAL + b"=",
            FINAL[:-4],
            FINAL.replace(b"c=biws", b"c=eSws"),
            FINAL.replace(b"c=biws", b"c=*"),
            FINAL.replace(b"k0,p=", b"k1,p="),
            FINAL.replace(b"r=rOpr", b"r=rOpX"),
            FINAL.replace(proof, b""),
            FINAL.replace(proof, b"AAAA"),
            FINAL.replace(b"p=", b"q="),
            b"\xff" + FINAL,
        ):
            exchange = exchangeOf(FIRST)
            exchange.challenge(SECRET)
            self.assertFalse(exchange.isProof(message), message)

    def test_order(self) -> None:
        """There is no proof before a challenge."""
        self.assertRaises(RuntimeError, exchangeOf(FIRST).isProof, FINAL)
        self.assertRaises(RuntimeError, exchangeOf(FIRST).signature)
