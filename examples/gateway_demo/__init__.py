"""
A cluster of three nodes, with and without a gateway in front of it, and a user that makes a new producer for each
record:

    python -m examples.gateway_demo [--seconds 20] [--keep]

It is run in the checkout, and wants C{pip install -e '.[test]'}, Java 17 or later, and Maven, which fetches Apache
Kafka once.
"""
