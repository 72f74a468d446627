"""Real clients go through the gateway to a cluster of Apache Kafka; see L{tests.kit.gatewaycases}."""
