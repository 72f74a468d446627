"""
C{twistd admission}: the broker.
"""

from twisted.application.service import ServiceMaker

admission = ServiceMaker(
    "Admission broker",
    "admission.kafka.service",
    "A Kafka-compatible broker behind a bounded memory pool",
    "admission",
)
