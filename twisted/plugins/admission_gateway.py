"""
C{twistd admission-gateway}: the gateway.
"""

from admission.kafka.twistdcommand import TwistdCommand

gateway = TwistdCommand(
    "Admission gateway",
    "admission.kafka.gateway.gatewayservice",
    "A bounded memory pool and quotas in front of a Kafka cluster",
    "admission-gateway",
)
