"""
The Kafka protocol as bytes: nothing here knows a reactor, a connection or what
a request means.

A frame goes through L{admission.wire.headers}, then through
L{admission.wire.produce} or L{admission.wire.codec}; the latter never decodes
what L{admission.wire.guard} has not walked first.  A client's requests and
their responses go through L{admission.wire.requests}.
"""
