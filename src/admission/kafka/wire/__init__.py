"""
The Kafka protocol as bytes: nothing here knows a reactor, a connection or what
a request means.

A frame goes through L{admission.kafka.wire.headers}, then through
L{admission.kafka.wire.produce} or L{admission.kafka.wire.codec}; the latter never decodes
what L{admission.kafka.wire.guard} has not walked first.  A client's requests and
their responses go through L{admission.kafka.wire.requests}.
"""
