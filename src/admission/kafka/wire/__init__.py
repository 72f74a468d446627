"""
The Kafka protocol as bytes: this package knows no reactor, no connections, and
not what a request means.

A frame goes through L{admission.kafka.wire.headers}, then through
L{admission.kafka.wire.produce} or L{admission.kafka.wire.codec}; the latter decodes
only what L{admission.kafka.wire.guard} has walked.  A client's requests and
their responses go through L{admission.kafka.wire.requests}.

What a gateway passes on is not decoded: L{admission.kafka.wire.relayedapis} says what
there is to know of it, L{admission.kafka.wire.responsewalk} finds the fields that
L{admission.kafka.wire.addresses}, L{admission.kafka.wire.passing} and
L{admission.kafka.wire.throttletime} replace, and L{admission.kafka.wire.versioncut}
cuts the versions that clients are told of.
"""
