"""
C{twistd admission}: the broker.
"""

from admission.kafka.twistdcommand import TwistdCommand

admission = TwistdCommand(
    "Admission broker",
    "admission.kafka.service",
    "A Kafka-compatible broker behind a bounded memory pool",
    "admission",
)
