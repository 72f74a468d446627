"""
The Kafka protocol as bytes: this package knows no reactor, no connections, and
not what a request means.

A frame goes through L{admission.kafka.wire.headers}, then through
L{admission.kafka.wire.produce} or L{admission.kafka.wire.codec}; the latter decodes
only what L{admission.kafka.wire.guard} has walked.  A client's requests and
their responses go through L{admission.kafka.wire.requests}.
"""
