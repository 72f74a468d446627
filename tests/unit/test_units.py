"""Tests for L{admission.units}."""

from __future__ import annotations

from hypothesis import given, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.units import (
    formatBytes,
    formatSeconds,
    formatShare,
    parseBytes,
    parseRate,
    parseSeconds,
    roundedAmount,
    roundedBytes,
    roundedSeconds,
)


class ParseBytesTests(SynchronousTestCase):
    """L{parseBytes} reads sizes exactly and refuses what is not one."""

    def test_units(self) -> None:
        """Letters alone are powers of ten, with C{i} they are powers of two."""
        expected = {
            "65536": 65536,
            "0": 0,
            "7B": 7,
            "100k": 100_000,
            "100kB": 100_000,
            "4M": 4_000_000,
            "2KiB": 2048,
            "64MiB": 64 << 20,
            "1GiB": 1 << 30,
            "1TiB": 1 << 40,
            " 3 G ": 3_000_000_000,
        }
        self.assertEqual({text: parseBytes(text) for text in expected}, expected)

    def test_fractionIsExact(self) -> None:
        """A fraction is fine if it names whole bytes, also where floats would miss."""
        self.assertEqual(parseBytes("0.1k"), 100)
        self.assertEqual(parseBytes("1.5GiB"), 3 << 29)
        self.assertEqual(parseBytes("9007199254740993"), 2**53 + 1)
        self.assertEqual(parseBytes("9007199.254740993G"), 2**53 + 1)

    def test_fractionOfByte(self) -> None:
        """Half a byte is refused."""
        self.assertIn("whole number of bytes", str(self.assertRaises(ValueError, parseBytes, "0.5")))

    def test_refused(self) -> None:
        """Anything else is refused in one sentence that quotes it and shows the form."""
        for text in ("", "-1", "+1", "4m", "4Mb", "1e3", "nan", "64 Mi B", "1.", ".5", "\u0664", "9" * 41, "1_0"):
            message = str(self.assertRaises(ValueError, parseBytes, text))
            self.assertTrue(message.startswith(f"{text!r} is not a size: "), message)
            self.assertIn("64KiB", message)

    @given(st.integers(min_value=0, max_value=2**63))
    def test_roundTrip(self, sizeBytes: int) -> None:
        """What L{formatBytes} writes is read back, to the byte."""
        self.assertEqual(parseBytes(formatBytes(sizeBytes)), sizeBytes)

    @given(st.integers(min_value=0, max_value=2000), st.sampled_from([1, 1000, 1024, 10**6, 2**20, 10**9, 2**30]))
    def test_roundTripOfRoundNumbers(self, count: int, factor: int) -> None:
        """Sizes that have a short form are read back as well, and it is no longer than the digits."""
        text = formatBytes(count * factor)
        self.assertEqual(parseBytes(text), count * factor)
        self.assertLessEqual(len(text), len(str(count * factor)))


class ParseSecondsTests(SynchronousTestCase):
    """L{parseSeconds} reads durations."""

    def test_units(self) -> None:
        """Every unit counts as it should, and gives the float Python would write."""
        expected = {"1us": 1e-6, "1ms": 0.001, "30s": 30.0, "5m": 300.0, "1h": 3600.0, "7d": 604800.0, "1.5h": 5400.0}
        self.assertEqual({text: parseSeconds(text) for text in expected}, expected)

    def test_bareNumber(self) -> None:
        """A bare number counts seconds, or what the caller says."""
        self.assertEqual(parseSeconds("500"), 500.0)
        self.assertEqual(parseSeconds("500", defaultUnit="ms"), 0.5)
        self.assertEqual(parseSeconds("500s", defaultUnit="ms"), 500.0)

    def test_refused(self) -> None:
        """Anything else is refused in one sentence that quotes it and shows the form."""
        for text in ("", "-1s", "1 min", "4M", "inf", "1e3", "s"):
            message = str(self.assertRaises(ValueError, parseSeconds, text))
            self.assertTrue(message.startswith(f"{text!r} is not a duration: "), message)
            self.assertIn("500ms", message)

    @given(st.floats(min_value=1e-9, max_value=1e15) | st.integers(min_value=0, max_value=10**7).map(float))
    def test_roundTrip(self, seconds: float) -> None:
        """What L{formatSeconds} writes is read back as the same float."""
        self.assertEqual(parseSeconds(formatSeconds(seconds)), seconds)


class ParseRateTests(SynchronousTestCase):
    """L{parseRate} reads amounts per time."""

    def test_rates(self) -> None:
        """Without a slash an amount is per second; after a slash stands a duration, or a unit for one of it."""
        expected = {"4M": 4e6, "4M/s": 4e6, "64KiB": 65536.0, "100/1h": 100 / 3600, "100/h": 100 / 3600, "3/500ms": 6.0}
        self.assertEqual({text: parseRate(text) for text in expected}, expected)

    def test_refused(self) -> None:
        """Anything else, no time at all included, is refused with the form."""
        for text in ("", "/s", "4M/", "4M/0s", "4M/x", "4M/s/s", "-1"):
            message = str(self.assertRaises(ValueError, parseRate, text))
            self.assertTrue(message.startswith(f"{text!r} is not a rate: "), message)
            self.assertIn("100/1h", message)


class FormatTests(SynchronousTestCase):
    """The shortest exact form is chosen."""

    def test_bytes(self) -> None:
        """A unit is used where it shortens, binary before decimal; a negative size keeps its sign."""
        expected = {0: "0", 999: "999", 1000: "1k", 1024: "1KiB", 1048588: "1048588", 64 << 20: "64MiB", -4096: "-4KiB"}
        self.assertEqual({sizeBytes: formatBytes(sizeBytes) for sizeBytes in expected}, expected)

    def test_seconds(self) -> None:
        """A unit is used where it shortens; a negative duration keeps its sign."""
        expected = {
            0.0: "0s",
            0.001: "1ms",
            1.5: "1.5s",
            90.0: "90s",
            604800.0: "7d",
            -5.0: "-5s",
            1e-9: "0.000000001s",
        }
        self.assertEqual({seconds: formatSeconds(seconds) for seconds in expected}, expected)

    def test_share(self) -> None:
        """The float that a fraction became is that fraction again."""
        for share in ("1/2", "1/3", "1/999", "2/7"):
            above, below = map(int, share.split("/"))
            self.assertEqual(formatShare(above / below), share)


class RoundedTests(SynchronousTestCase):
    """Three or four digits are enough for people."""

    def test_bytes(self) -> None:
        """Sizes have the binary unit in which they are a number below 1024."""
        expected = {
            0: "0 B",
            1023: "1023 B",
            1024: "1 KiB",
            10_000_000: "9.54 MiB",
            128 << 20: "128 MiB",
            (1 << 30) - 1: "1 GiB",
            3 << 50: "3,072.0 TiB",
            -5 << 20: "-5 MiB",
        }
        self.assertEqual({sizeBytes: roundedBytes(sizeBytes) for sizeBytes in expected}, expected)

    def test_seconds(self) -> None:
        """Durations have one unit up to 100 seconds, and then two."""
        expected = {
            0: "0 s",
            0.00021: "0.21 ms",
            0.9994: "999 ms",
            0.9996: "1 s",
            9.314: "9.31 s",
            99.96: "100 s",
            125: "2 min 5 s",
            3600: "60 min",
            100 * 3600: "4 d 4 h",
            -2.5: "-2.5 s",
        }
        self.assertEqual({seconds: roundedSeconds(seconds) for seconds in expected}, expected)

    def test_amounts(self) -> None:
        """Amounts have a decimal unit from ten thousand on, and never a power of ten."""
        expected = {
            0: "0",
            0.25: "0.25",
            9999: "9999",
            9999.7: "10k",
            999_960: "1M",
            1_234_567: "1.235M",
            -4e9: "-4G",
            5e13: "50T",
        }
        self.assertEqual({amount: roundedAmount(amount) for amount in expected}, expected)
