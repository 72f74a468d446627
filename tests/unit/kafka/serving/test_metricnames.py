"""Tests for L{admission.kafka.serving.metricnames}."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import DEFAULT, QuotaEntity, Request, Usage
from admission.kafka.serving.metricnames import KAFKA_NAMINGS
from admission.metrics.prometheus import exposition
from admission.metrics.prometheusnames import NAMINGS
from admission.metrics.registry import SensorRegistry
from admission_plugins.producerids import ProducerIds
from tests.kit.metricnames import lint, missingRows


class MetricNamesTests(SynchronousTestCase):
    """What a broker measures has good names, and Kafka's."""

    def setUp(self) -> None:
        """No sensors yet."""
        self.registry = SensorRegistry(lambda: 0.0)

    def samples(self) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        """By the name of the sample, the value for each set of labels."""
        return {
            family.name: {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples}
            for family in text_string_to_metric_families("".join(exposition(self.registry, KAFKA_NAMINGS)))
        }

    def test_conventions(self) -> None:
        """No name of ours breaks a rule of promtool's; Kafka's do, as they must.  No two are equal."""
        self.assertEqual([complaint for each in KAFKA_NAMINGS if not each.isAlias for complaint in lint(each)], [])
        names = [each.name for each in (*NAMINGS, *KAFKA_NAMINGS)]
        self.assertEqual(len(names), len(set(names)))
        for each in KAFKA_NAMINGS:
            self.assertEqual(each.name.startswith("kafka_"), each.isAlias)

    def test_manual(self) -> None:
        """The manual has a row for each name, with the help text of the metric."""
        self.assertEqual(missingRows(KAFKA_NAMINGS), [])

    def test_aliases(self) -> None:
        """Kafka's names stand beside ours, in Kafka's units and with Kafka's labels."""
        self.registry.addGauge("MemoryPoolUsed", lambda now: 7)
        self.registry.addFamily(
            "client-bytes.Produce.throttle-time", ("user", "client-id"), lambda now: [(("alice", "app"), 1500.0)]
        )
        samples = self.samples()
        self.assertEqual(samples["admission_pool_used_bytes"], {(): 7.0})
        self.assertEqual(samples["kafka_network_socketserver_memorypoolused"], {(): 7.0})
        labels = {"policy": "client-bytes", "resource": "Produce", "user": "alice", "client_id": "app"}
        self.assertEqual(samples["admission_quota_throttle_seconds"], {tuple(sorted(labels.items())): 1.5})
        kafka = {"resource": "Produce", "user": "alice", "clientId": "app"}
        self.assertEqual(samples["kafka_server_quota_throttle_time"], {tuple(sorted(kafka.items())): 1500.0})

    def test_producerIds(self) -> None:
        """All that is measured of producer ids has a name here or among the framework's."""
        policy = ProducerIds(60.0)
        policy.addSensors(self.registry, "producer-ids")
        policy.configure(QuotaEntity(user=DEFAULT), {policy.limitNames[0]: 5.0}, 0.0)
        policy.record(Request("Produce", "bob", "app", "192.0.2.1", 100, (7,)), Usage(requestBytes=100), 0.0)
        samples = self.samples()
        known = {each.name.removesuffix("_total") for each in (*NAMINGS, *KAFKA_NAMINGS)}
        self.assertEqual(set(samples) - known, {"admission_left_out_rows"})
        self.assertEqual(
            set(samples["admission_quota_new_producer_ids"]), {(("policy", "producer-ids"), ("user", "bob"))}
        )
