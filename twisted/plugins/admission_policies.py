"""
The default policies, by name.
"""

from admission.interfaces import IMemoryPoolFactory, IPurgatoryFactory
from admission.plugins import PolicyFactory, TransportAdapters

bounded = PolicyFactory(
    IMemoryPoolFactory,
    name="bounded",
    format="bounded:SIZE[:strict=yes|no][:max=SIZE]",
    help="""
        At most SIZE bytes (64MiB, 500M) for requests that are not finished yet.

        A request is let in as long as a single byte is available, so that
        large requests cannot starve behind small ones; what requests hold is
        then bounded by SIZE and one largest request more.  With strict=yes the
        whole request must be available, and large requests may starve.

        max is the largest single request, by default what the server allows.
    """,
    implementation="admission_plugins.bounded.buildBounded",
)

unbounded = PolicyFactory(
    IMemoryPoolFactory,
    name="unbounded",
    format="unbounded",
    help="""
        No bound: memory is counted, and nobody is ever refused.
    """,
    implementation="admission_plugins.bounded.buildUnbounded",
)

wheel = PolicyFactory(
    IPurgatoryFactory,
    name="wheel",
    format="wheel[:tick=1ms][:size=20]",
    help="""
        Hierarchical timing wheels: setting and cancelling a timeout takes
        constant time, however many requests wait, and the reactor has a single
        timer for all of them.

        tick is how late a timeout may be, beyond what the reactor itself takes;
        size is how many slots each wheel has.
    """,
    implementation="admission_plugins.purgatory.buildWheel",
)

calllater = PolicyFactory(
    IPurgatoryFactory,
    name="calllater",
    format="calllater",
    help="""
        A timer of the reactor for each request that waits: the plain way, to
        compare with.
    """,
    implementation="admission_plugins.purgatory.buildCallLater",
)

transportAdapters = TransportAdapters("Twisted's transports", "admission_plugins.mutability.register")
