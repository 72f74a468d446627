"""
The default policies, by name.
"""

from admission.interfaces import (
    IMemoryPoolFactory,
    IMetricsExporterFactory,
    IPurgatoryFactory,
    IQuotaPolicyFactory,
    IUsageExchangeFactory,
    IWaitOrderFactory,
)
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

fair = PolicyFactory(
    IMemoryPoolFactory,
    name="fair",
    format="fair:SIZE[:max=SIZE]",
    help="""
        At most SIZE bytes, like bounded, and no client gets more while it has
        as much as is free.  A client is a principal, or else an address.

        One client alone comes to half of SIZE; of several that want all they can
        get each comes to the same, and as much is left for the next.  A
        connection whose client has its share waits, and keeps nobody waiting.

        max is the largest single request, by default what the server allows.
    """,
    implementation="admission_plugins.bounded.buildFair",
)

unbounded = PolicyFactory(
    IMemoryPoolFactory,
    name="unbounded",
    format="unbounded",
    help="""
        No bound: memory is counted, and no request is ever refused.
    """,
    implementation="admission_plugins.bounded.buildUnbounded",
)

holders = PolicyFactory(
    IWaitOrderFactory,
    name="holders",
    format="holders",
    help="""
        By turns: a connection of the client that was served longest ago, and one
        of all that wait; each drawn at random, in rounds.  A client is a
        principal, or else an address.  So nobody waits long since somebody else
        has many connections.
    """,
    implementation="admission_plugins.orders.buildHolderRounds",
)

rounds = PolicyFactory(
    IWaitOrderFactory,
    name="rounds",
    format="rounds",
    help="""
        Random order, in rounds: a connection that joins during a round is served
        in the next one.  Asking first gains nothing, and no connection waits for
        longer than the rest of a round and all of another.
    """,
    implementation="admission_plugins.orders.buildRounds",
)

fifo = PolicyFactory(
    IWaitOrderFactory,
    name="fifo",
    format="fifo",
    help="""
        First in, first out: the connection that has waited longest.  The waits
        differ least, and the client with most connections gets most.
    """,
    implementation="admission_plugins.orders.buildFirstInFirstOut",
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

clientBytes = PolicyFactory(
    IQuotaPolicyFactory,
    name="client-bytes",
    format=(
        "client-bytes[:received=RATE][:sent=RATE][:algorithm=window|bucket][:burst=1s][:windows=11][:window=1s]"
        "[:meters=10000][:shadow=yes|no][:shared=yes|no]"
    ),
    help="""
        How many bytes a second are received from each client and sent to it:
        the limits received_byte_rate and sent_byte_rate of users, client ids
        and client ids of a user.  Of Kafka's requests, what Produce brings and
        Fetch takes; there the limits are called producer_byte_rate and
        consumer_byte_rate, and both names are understood everywhere.

        received and sent are the limits of client ids that have no other (2M);
        they may be called produce and fetch, too.

        algorithm=window is Kafka's: the mean over that many windows of that
        length, quota.window.num and quota.window.size.seconds unless given
        here.  A client may send what these windows hold at once, and large
        requests may come to almost twice the limit.  algorithm=bucket is exact
        once its burst is spent, which is the limit times a duration.

        meters is how many clients are told apart, besides those with limits
        of their own; clients beyond share.  With shadow=yes it only counts.
        shared=yes is what gateways with --shared-limits add; it goes with
        algorithm=bucket, which is the default then.
    """,
    implementation="admission_plugins.clientquotas.buildClientBytes",
)

requestTime = PolicyFactory(
    IQuotaPolicyFactory,
    name="request-time",
    format="request-time[:percent=NUMBER][:meters=10000][:shadow=yes|no][:kinds=KIND+KIND...]",
    help="""
        How much of the server's time each client may take with requests of any
        kind: the limit request_percentage of users, client ids and client ids of
        a user.  100 is all of one thread, and this server has one.

        percent is the limit of client ids that have no other.  The share is
        taken over quota.window.num windows, and no client is throttled for more
        than one of them at a time.

        kinds are those of which requests count, all unless given (put+get).

        meters is how many clients are told apart, besides those with limits
        of their own; clients beyond share.  With shadow=yes it only counts.
    """,
    implementation="admission_plugins.clientquotas.buildRequestTime",
)

connections = PolicyFactory(
    IQuotaPolicyFactory,
    name="connections",
    format="connections[:perSecond=RATE][:burst=1s][:meters=10000][:shadow=yes|no]",
    help="""
        How many connections each address may open: the limit
        connection_creation_rate of addresses.  Connections beyond it are throttled before anything is read from them.

        perSecond is the limit of addresses that have no other (10, or 30/1m).
        burst is for how long an address may save up.

        meters is how many addresses are told apart, besides those with limits
        of their own; clients beyond share.  With shadow=yes it only counts.
    """,
    implementation="admission_plugins.clientquotas.buildConnectionRate",
)

concurrency = PolicyFactory(
    IQuotaPolicyFactory,
    name="concurrency",
    format=(
        "concurrency[:limit=NUMBER][:total=NUMBER][:queue=NUMBER[:wait=2s]][:shadow=yes|no][:kinds=KIND+KIND...] or "
        "concurrency:adaptive[:target=100ms][:by=all|client][:max=1000][:queue=NUMBER[:wait=2s]][:shadow=yes|no]"
        "[:kinds=KIND+KIND...]"
    ),
    help="""
        How many requests may be in progress at a time: the limit
        concurrent_requests of users, client ids and client ids of a user.
        Requests that wait for the disk or for another server are in progress.
        Those that wait for other clients, for records or for the rest of a group,
        do not count.

        limit is the limit of client ids that have no other, total that of all
        clients together.

        An adaptive limit grows while requests take no longer than target, and
        shrinks when they do: the server finds out by itself how many requests at
        a time are too many.  It is one limit for all, or with by=client one for
        each user with each client id, and grows to max at most.

        With queue, as many requests more wait for one to end, for as long as wait
        says, instead of being refused at once: by turns among clients, and where
        they wait for long the newest first, since the oldest are answered too late
        for anybody.  Brokers and gateways have no such queue.

        kinds are those of which requests count, all unless given (put+get).
        With shadow=yes it only counts.
    """,
    implementation="admission_plugins.concurrency.buildConcurrency",
)

requests = PolicyFactory(
    IQuotaPolicyFactory,
    name="requests",
    format="requests[:rate=RATE][:burst=NUMBER][:meters=10000][:shadow=yes|no][:kinds=KIND+KIND...]",
    help="""
        How many requests a second each client may send, whatever they are and
        take: the limit request_rate of users, client ids, client ids of a user,
        and addresses.  Where a client and its address have one, both hold.
        Requests beyond it are refused; where they cannot be, their client is
        throttled.

        rate is the limit of client ids that have no other (5, or 30/1m).  burst
        is how many of them may come at once: as many as in a second, unless
        given, and at least one; other limits have as many seconds' worth.

        kinds are those of which requests count, all unless given (put+get).

        meters is how many clients, and how many addresses, are told apart,
        besides those with limits of their own; clients beyond share.  With
        shadow=yes it only counts.
    """,
    implementation="admission_plugins.requestrate.buildRequestRate",
)

shed = PolicyFactory(
    IQuotaPolicyFactory,
    name="shed",
    format=(
        "shed:kinds=KIND+KIND...|clients=NAME+NAME...[:lag=100ms][:free=20%][:target=TIME[:max=1000]][:shadow=yes|no]"
    ),
    help="""
        Refuses first what can wait, while the server has too much to do.  All
        other requests go on.

        kinds are the kinds of requests that can wait, and clients the users and
        client ids whose requests can, whatever they are.

        They are refused if they come later than lag, since they had to wait for
        their turn or the reactor has been late for half a second; while less than
        free of the memory pool is free; or while more requests are in progress
        than take no longer than target: that number is found out, as by
        concurrency:adaptive, and is max at most.  If none of the three is given,
        lag and free hold.  A recording has lag and free memory of each request, so
        that a replay decides the same.

        With shadow=yes it only counts.
    """,
    implementation="admission_plugins.shed.buildShedding",
)

producerIds = PolicyFactory(
    IQuotaPolicyFactory,
    name="producer-ids",
    format=(
        "producer-ids[:rate=NUMBER][:window=1h][:mode=refuse|throttle][:shadow=yes|no][:layers=4]"
        "[:falsePositives=0.01][:maxBytes=64MiB][:windows=11][:cleanup=10s][:meters=10000][:shared=yes|no]"
    ),
    help="""
        Limits how many new producer ids a user may introduce in a window (KIP-936):
        the limit producer_ids_rate of users.  An id that was seen within the
        window is not new, and passes always.

        rate is the limit of users that have none of their own.  A user may bring
        that many ids at once, and then as many again spread over a window.  Requests
        with more are refused before anything is appended; with mode=throttle they
        are let in, and the user is throttled.  With shadow=yes it only counts.

        Needs admission[kafka].

        Known ids are kept in Bloom filters of that many layers, which take
        falsePositives of all unknown ids for known, and maxBytes of memory at
        most, all users together.  windows is in how many steps the sensor of the
        rate forgets, cleanup how often idle users are looked for, and meters how
        many users are told apart, besides those with limits of their own; those
        beyond share.  shared=yes is what gateways with --shared-limits add.
    """,
    implementation="admission_plugins.producerids.buildProducerIds",
)

spark = PolicyFactory(
    IMetricsExporterFactory,
    name="spark",
    format="spark:DIRECTORY[:rotate=60s][:cap=2GiB][:sealing=process|inline]",
    help="""
        Records every request, connection, change of limits and sensor sample for
        Spark: Parquet files by table, day and hour.  Needs admission[spark].

        Events are written into mapped files at once, so that none is lost when
        the process is killed, and sealed to Parquet by a process of its own, at
        the latest when rotate has passed or at the next start.

        The directory never takes more than cap: the oldest Parquet files go
        first.  Where there is no room for events they are dropped, and counted.

        sealing=inline has the recording process seal by itself, for tools that
        serve no clients.
    """,
    implementation="admission_plugins.parquetexporter.buildParquet",
)

transportAdapters = TransportAdapters("Twisted's transports", "admission_plugins.transportadapters.register")

topic = PolicyFactory(
    IUsageExchangeFactory,
    name="topic",
    format="topic[:name=__admission][:interval=100ms][:kept=25h]",
    help="""
        Through three topics of the cluster behind the gateways, NAME-usage,
        NAME-kept and NAME-limits, which are made if they are not there.  All
        gateways that share limits have the same NAME.

        Every interval each gateway writes what its clients have taken, and
        reads what all have written.  kept is for how long producer ids are
        there for gateways that start: longer than the window of producer-ids.

        The login of the gateway (--upstream-login) needs Create, Describe,
        Read and Write on these topics, and clients should have none of it.
    """,
    implementation="admission.kafka.gateway.usagetopic.buildUsageTopic",
)
