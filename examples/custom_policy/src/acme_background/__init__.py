"""
What every command of Twisted may import when it looks for plug-ins: words only.
"""

from admission import IQuotaPolicyFactory, PolicyFactory

background = PolicyFactory(
    IQuotaPolicyFactory,
    name="background",
    format="background[:PERCENT][:clientId=background]",
    help="Clients that can wait are throttled while requests of all clients take more than PERCENT of one thread.",
    implementation="acme_background.policy.buildBackground",
)
