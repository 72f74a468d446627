"""
C{twistd admission-gateway}: the gateway.
"""

from twisted.application.service import ServiceMaker

gateway = ServiceMaker(
    "Admission gateway",
    "admission.kafka.gateway.gatewayservice",
    "A bounded memory pool and quotas in front of a Kafka cluster",
    "admission-gateway",
)
