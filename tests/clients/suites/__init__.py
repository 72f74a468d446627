"""
Other people's software, unmodified, against a broker: one module for each suite, which is one command to run::

    python -m pytest tests/clients/suites/test_java_tools.py

Each compares what it found with C{results}, of which C{docs/what-works.md} is made; C{make what-works} runs all of them
and writes both anew.
"""
