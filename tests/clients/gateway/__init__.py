"""Real clients go through the gateway to a cluster of Apache Kafka; see L{tests.clients.gateway.gatewaycases}."""
