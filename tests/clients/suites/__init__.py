"""
Other people's software, unmodified, against a broker: one module for each suite, which is one command to run::

    python -m pytest tests/clients/suites/test_java_tools.py

C{test_through_the_gateway} runs them with a gateway and a cluster.  Each compares what it found with C{results}, of
which C{docs/what-works.md} and C{docs/what-works-through-the-gateway.md} are made; C{make what-works} runs all of them
and writes all of that anew.
"""
