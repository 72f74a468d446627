"""Tests for L{admission.metrics.prometheus} and L{admission.metrics.prometheusnames}."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families
from twisted.trial.unittest import SynchronousTestCase

from admission.control import AdmissionControl
from admission.interfaces import DEFAULT, QuotaEntity, Request, Usage
from admission.metrics.histogram import Histogram
from admission.metrics.prometheus import (
    LEFT_OUT,
    MAX_LABEL_CHARACTERS,
    MAX_ROWS,
    ROWS_PER_TURN,
    exposition,
    mergedExposition,
)
from admission.metrics.prometheusnames import NAMINGS, Naming, namingsOf
from admission.metrics.registry import SensorRegistry
from admission.quotas.metering import Buckets, Windows
from admission_plugins.clientquotas import ClientBytes, ConnectionRate
from tests.kit.metricnames import lint, missingRows


class ExpositionTestCase(SynchronousTestCase):
    """A test with sensors, which reads what is said of them as Prometheus does."""

    def setUp(self) -> None:
        """No sensors yet, and no names but the framework's."""
        self.registry = SensorRegistry(lambda: 0.0)
        self.namings: Sequence[Naming] = ()

    def samples(self) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        """By the name of the sample, the value for each set of labels; none may come twice."""
        read: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in text_string_to_metric_families("".join(exposition(self.registry, self.namings))):
            for sample in family.samples:
                rows = read.setdefault(sample.name, {})
                labels = tuple(sorted(sample.labels.items()))
                self.assertNotIn(labels, rows, sample.name)
                rows[labels] = sample.value
        return read

    def kinds(self) -> Mapping[str, str]:
        """The type of each metric; none may be told of twice."""
        found = re.findall(r"^# TYPE (\S+) (\S+)$", "".join(exposition(self.registry, self.namings)), re.MULTILINE)
        self.assertEqual(len(found), len(dict(found)))
        return dict(found)


class ExpositionTests(ExpositionTestCase):
    """Sensors become metrics."""

    def test_gauge(self) -> None:
        """A gauge has the name that the table gives it."""
        self.registry.addGauge("MemoryPoolUsed", lambda now: 7)
        self.assertEqual(self.samples()["admission_pool_used_bytes"], {(): 7.0})
        self.assertEqual(self.kinds()["admission_pool_used_bytes"], "gauge")

    def test_total(self) -> None:
        """A sensor that nobody has named is what it was published as, whatever its name ends with."""
        self.registry.addGauge("CacheTotal", lambda now: 7)
        self.registry.addCounter("SeenTotal", lambda now: 8)
        histogram = Histogram()
        histogram.record(1.0)
        self.registry.addHistogram("SizeTotal", histogram)
        kinds = self.kinds()
        self.assertEqual(kinds["admission_cache_total"], "gauge")
        self.assertEqual(kinds["admission_seen_total"], "counter")
        self.assertEqual(kinds["admission_size_total"], "histogram")
        self.assertEqual(self.samples()["admission_size_total_count"], {(): 1.0})

    def test_help(self) -> None:
        """Every metric says what it is."""
        self.registry.addGauge("RunningRequests", lambda now: 7)
        self.assertIn(
            "# HELP admission_requests_running Requests that are being served.\n",
            "".join(exposition(self.registry, self.namings)),
        )

    def test_counter(self) -> None:
        """A counter's name ends with C{_total}; a gauge that only grows becomes a counter by such a name."""
        self.registry.addCounter("RequestsRead", lambda now: 3)
        self.registry.addGauge("ProcessCpuSeconds", lambda now: 1.5)
        self.registry.addCounter("Unknown", lambda now: 4)
        samples, kinds = self.samples(), self.kinds()
        for name, value in (
            ("admission_requests_total", 3.0),
            ("process_cpu_seconds_total", 1.5),
            ("admission_unknown_total", 4.0),
        ):
            self.assertEqual((samples[name], kinds[name]), ({(): value}, "counter"))

    def test_histogram(self) -> None:
        """A histogram's ranges add up from the bottom, with the sum and the count of all."""
        histogram = Histogram((1.0, 2.0))
        for value in (0.5, 1.0, 1.5, 9.0):
            histogram.record(value)
        self.registry.addHistogram("RequestWaitSeconds", histogram)
        samples = self.samples()
        self.assertEqual(
            {dict(labels)["le"]: value for labels, value in samples["admission_purgatory_wait_seconds_bucket"].items()},
            {"1": 2.0, "2": 3.0, "+Inf": 4.0},
        )
        where = (("purgatory", "Request"),)
        self.assertEqual(samples["admission_purgatory_wait_seconds_sum"], {where: 12.0})
        self.assertEqual(samples["admission_purgatory_wait_seconds_count"], {where: 4.0})
        self.assertEqual(self.kinds()["admission_purgatory_wait_seconds"], "histogram")

    def test_brokenSensors(self) -> None:
        """Sensors that raise or are no numbers are left out, and the others are served each time."""
        self.registry.addGauge("Before", lambda now: 1.0)
        self.registry.addGauge("Raises", lambda now: 1 / 0)
        self.registry.addGauge("Text", lambda now: "many")  # type: ignore[arg-type, return-value]
        self.registry.addHistogram("Waits", Histogram.__new__(Histogram))
        self.registry.addFamily("Rates", ("client",), lambda now: 1 / 0)  # type: ignore[arg-type, return-value]
        self.registry.addGauge("After", lambda now: 2.0)
        for _ in range(2):
            samples = self.samples()
            values = {name: list(rows.values()) for name, rows in samples.items()}
            self.assertEqual(values, {"admission_before": [1.0], "admission_after": [2.0]})
        self.assertEqual(set(self.registry.failures.values()), {2})
        self.assertEqual(len(self.flushLoggedErrors()), 4)

    def test_unencodableLabel(self) -> None:
        """A name that cannot be encoded does not take the page with it."""
        self.registry.addFamily("Rates", ("client",), lambda now: [(("a\udcff",), 1.0)])
        self.assertEqual(self.samples()["admission_rates"], {(("client", "a?"),): 1.0})

    def test_family(self) -> None:
        """A family's labels stand beside those in its name; what is not a number is not there."""
        self.registry.addFamily(
            "client-bytes.Produce.throttle-time",
            ("user", "client-id"),
            lambda now: [(("alice", "app"), 1500.0), (("", "idle"), math.nan)],
        )
        labels = {"policy": "client-bytes", "resource": "Produce", "user": "alice", "client_id": "app"}
        samples = self.samples()
        self.assertEqual(samples["admission_quota_throttle_seconds"], {tuple(sorted(labels.items())): 1.5})

    def test_units(self) -> None:
        """Values come in the base unit that the name says."""
        self.registry.addCounter("MemoryPoolDepletedMicroseconds", lambda now: 1_500_000)
        self.registry.addFamily("a.Request.request-time", (), lambda now: [((), 50.0)])
        samples = self.samples()
        self.assertEqual(samples["admission_pool_depleted_seconds_total"], {(): 1.5})
        labels = (("policy", "a"), ("resource", "Request"))
        self.assertEqual(samples["admission_quota_request_time_ratio"], {labels: 0.5})

    def test_driversNames(self) -> None:
        """
        Names of the server's driver come before the framework's; an alias stands beside a sensor's own name, with
        labels of its own.
        """
        self.namings = [
            Naming("Connections", "diary_readers", "Readers of the diary."),
            Naming("Readers-(?P<kind>.*)", "diary_others", "Others.", labels={"user": "reader"}),
            Naming("MemoryPoolUsed", "pool_old_name", "As admission_pool_used_bytes.", isAlias=True),
        ]
        for name in ("Connections", "MemoryPoolUsed"):
            self.registry.addGauge(name, lambda now: 7)
        self.registry.addFamily("Readers-new", ("user",), lambda now: [(("a",), 1.0)])
        samples = self.samples()
        self.assertEqual(set(samples), {"diary_readers", "diary_others", "admission_pool_used_bytes", "pool_old_name"})
        self.assertEqual(samples["diary_others"], {(("kind", "new"), ("reader", "a")): 1.0})

    def test_together(self) -> None:
        """Sensors that make one metric are told of together."""
        for resource in ("Produce", "Fetch"):
            self.registry.addFamily(
                f"client-bytes.{resource}.utilization", ("user", "client-id"), lambda now: [(("", "app"), 0.5)]
            )
            self.registry.addGauge(f"Other{resource}", lambda now: 1)
        self.assertEqual(len(self.samples()["admission_quota_used_ratio"]), 2)
        self.assertEqual(self.kinds()["admission_quota_used_ratio"], "gauge")

    def test_strangers(self) -> None:
        """Whatever sensors other people's policies have, there is a name for it, and what it says stays readable."""
        self.registry.addGauge("acme.GPUTemp-2", lambda now: 40)
        self.registry.addGauge("acme.gpu-temp.2", lambda now: 41)
        self.registry.addCounter("acme-gpu-temp-2", lambda now: 42)
        self.registry.addGauge("\u00fc", lambda now: 43)
        samples = self.samples()
        self.assertEqual(samples["admission_acme_gpu_temp_2"], {(): 40.0})
        self.assertEqual(samples["admission_acme_gpu_temp_2_counter_total"], {(): 42.0})
        self.assertEqual(samples["admission_sensor"], {(): 43.0})

    def test_labelsOfClients(self) -> None:
        """Clients may call themselves anything."""
        name = 'a"b\\c\nd\u00fc'
        self.registry.addFamily("Lag", ("group",), lambda now: [((name,), 1.0)])
        self.assertEqual(self.samples()["admission_lag"], {(("group", name),): 1.0})

    def test_nothing(self) -> None:
        """Without sensors there is nothing but the metric that says that nothing was left out."""
        self.assertEqual(self.kinds(), {LEFT_OUT: "gauge"})


class MergedTests(SynchronousTestCase):
    """Expositions of several processes become one."""

    def expositionOf(self, process: str, clients: Sequence[str], histogram: Histogram | None = None) -> str:
        """What a process says."""
        registry = SensorRegistry(lambda: 0.0)
        registry.addCounter("RequestsRead", lambda now: 7)
        registry.addFamily("Bytes", ("client",), lambda now: [((name,), 1.0) for name in clients])
        if histogram is not None:
            registry.addHistogram("RequestWaitSeconds", histogram)
        return "".join(exposition(registry, labels={"process": process}))

    def test_together(self) -> None:
        """All rows of a metric are together, whatever their labels say, and none is lost."""
        names = ["a", "# HELP b", "\n# HELP admission_requests_total x\n# TYPE c counter"]
        histogram = Histogram((1.0,))
        histogram.record(0.5)
        texts = [
            self.expositionOf("1", names),
            self.expositionOf("2", names[:2], histogram),
            self.expositionOf("3", []),
        ]
        whole = "".join(mergedExposition(texts))
        kinds = re.findall(r"^# TYPE (\S+) (\S+)$", whole, re.MULTILINE)
        self.assertEqual(len(kinds), len(dict(kinds)))
        self.assertEqual(set(kinds), {each for text in texts for each in re.findall(r"(?m)^# TYPE (\S+) (\S+)$", text)})
        rows = [
            (each.labels.pop("process"), each.name, each.labels, each.value)
            for family in text_string_to_metric_families(whole)
            for each in family.samples
        ]
        self.assertEqual([row[0] for row in rows if row[1] == "admission_requests_total"], ["1", "2", "3"])
        self.assertEqual(
            [(row[0], row[2]["client"]) for row in rows if row[1] == "admission_bytes"],
            [("1", names[0]), ("1", names[1]), ("1", names[2]), ("2", names[0]), ("2", names[1])],
        )
        self.assertIn(("2", "admission_purgatory_wait_seconds_count", {"purgatory": "Request"}, 1.0), rows)
        self.assertEqual(len(whole.splitlines()), len(kinds) * 2 + len(rows))

    def test_leftOut(self) -> None:
        """Rows that are left out are counted for each process."""
        names = [str(number) for number in range(MAX_ROWS + 1)]
        whole = "".join(mergedExposition([self.expositionOf(process, names) for process in "12"]))
        for process in "12":
            self.assertIn(f'{LEFT_OUT}{{metric="admission_bytes",process="{process}"}} 1.0\n', whole)
        self.assertEqual(whole.count(f"# TYPE {LEFT_OUT} "), 1)


class BoundsTests(ExpositionTestCase):
    """However many clients there are, a page is bounded."""

    COUNT = 3 * ROWS_PER_TURN

    def clients(self, now: float) -> Iterator[tuple[tuple[str, str], float]]:
        """Many clients, in no particular order."""
        for number in range(self.COUNT):
            self.read += 1
            yield ("", f"client-{number}"), number * 7919 % self.COUNT

    def test_largest(self) -> None:
        """Those with the largest values are kept, and how many are not is a metric."""
        self.read = 0
        self.registry.addFamily("client-bytes.Produce.byte-rate", ("user", "client-id"), self.clients)
        samples = self.samples()
        rows = samples["admission_quota_bytes_per_second"]
        self.assertEqual(sorted(rows.values()), [float(each) for each in range(self.COUNT - MAX_ROWS, self.COUNT)])
        leftOut = samples[LEFT_OUT]
        self.assertEqual(leftOut[(("metric", "admission_quota_bytes_per_second"),)], self.COUNT - MAX_ROWS)

    def test_countersLeftOut(self) -> None:
        """Rows of a counter that are left out are counted under its whole name."""
        self.read = 0
        self.registry.addFamily("QuotaThrottles", ("user", "client-id"), self.clients, isCounter=True)
        left = (("metric", "admission_quota_throttles_total"),)
        self.assertEqual(self.samples()[LEFT_OUT], {left: self.COUNT - MAX_ROWS})

    def test_smallest(self) -> None:
        """Of buckets, those are kept that hold least."""
        self.read = 0
        self.registry.addFamily("client-bytes.Produce.tokens", ("user", "client-id"), self.clients)
        rows = self.samples()["admission_quota_tokens"]
        self.assertEqual(sorted(rows.values()), [float(each) for each in range(MAX_ROWS)])

    def test_turns(self) -> None:
        """The number of rows that a piece reads is bounded."""
        self.read = 0
        self.registry.addFamily("client-bytes.Produce.tokens", ("user", "client-id"), self.clients)
        before = 0
        for _piece in exposition(self.registry, self.namings):
            self.assertLessEqual(self.read - before, ROWS_PER_TURN)
            before = self.read
        self.assertEqual(self.read, self.COUNT)

    def test_longLabels(self) -> None:
        """Long names are truncated; of names that become equal by that, one row is kept."""
        names = ["a" * 30_000 + each for each in "bcd"]
        self.registry.addFamily("Lag", ("group",), lambda now: [((name,), 1.0) for name in names])
        self.assertEqual(self.samples()["admission_lag"], {(("group", "a" * MAX_LABEL_CHARACTERS),): 1.0})


class NamesTests(ExpositionTestCase):
    """The names follow the conventions, and the manual has them."""

    def test_conventions(self) -> None:
        """No name breaks a rule of promtool's, and no two are equal."""
        names = [each.name for each in NAMINGS]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual([complaint for each in NAMINGS for complaint in lint(each)], [])

    def test_first(self) -> None:
        """A sensor has the first name that fits, or one made of its own."""
        for sensor, name in (
            ("client-bytes.Fetch.byte-rate", "admission_quota_bytes_per_second"),
            ("spark.sealed-bytes", "admission_spark_sealed_bytes"),
        ):
            self.assertEqual([naming.name for naming, _ in namingsOf(sensor)], [name])

    def test_policies(self) -> None:
        """What the policies that come with us measure of each client has a name with a unit."""
        clientBytes = ClientBytes(Windows(11, 1.0))
        policies = [
            ("client-bytes", clientBytes),
            ("client-bytes-#2", ClientBytes(Buckets(1.0))),
            ("connections", ConnectionRate(1.0)),
        ]
        control = AdmissionControl(policies, 20.0)
        control.addSensors(self.registry)
        control.configure(QuotaEntity(clientId=DEFAULT), {"received_byte_rate": 1000.0}, 0.0)
        request = Request("Produce", "bob", "app", "192.0.2.1", 20_000)
        control.charge(request, Usage(requestBytes=20_000), 0.0)
        samples = self.samples()
        client = {"client_id": "app", "user": "", "resource": "Received"}
        for name, policy, value in (
            ("admission_quota_used_ratio", "client-bytes", 2.0),
            ("admission_quota_throttle_seconds", "client-bytes", 10.0),
            ("admission_quota_tokens", "client-bytes-#2", -19_000.0),
        ):
            self.assertEqual(samples[name][tuple(sorted({**client, "policy": policy}.items()))], value, name)
        self.assertEqual(
            samples["admission_quota_throttles_total"],
            {(("policy", name),): count for (name, _), count in zip(policies, (1, 1, 0), strict=True)},
        )
        self.assertEqual(set(self.kinds()) - {naming.name for naming in NAMINGS}, {LEFT_OUT})

    def test_manual(self) -> None:
        """The manual has a row for each name, with the help text of the metric."""
        self.assertEqual(missingRows(NAMINGS), [])
