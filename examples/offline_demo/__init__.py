"""
A broker is recorded while clients load it, and what it would have been like under other policies is worked out:

    python -m examples.offline_demo

with real clients, and a page as the result; and how right that is, with clients that can be had again:

    python -m examples.offline_demo.counterfactual

Both are run in the checkout, and want C{pip install -e '.[test]'} and Java 17 or later.
"""
