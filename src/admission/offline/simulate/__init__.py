"""
What other policies would have made of recorded requests.

All but L{sparkreplay} and L{tally} needs no Spark: it takes and gives iterators
of Arrow batches, and what goes to other processes can be pickled.  In their
order:

  1. L{runs}: what is known of each run of a server.
  2. L{candidates} and L{trials}: what to try there, and under which limits.
  3. L{arrivals}: what a candidate may see of each request.
  4. L{keys} finds which of them have to be replayed together, and L{shards}
     which trials share them.  Spark shuffles and sorts them in between.
  5. Open loop: L{openloop}.  Closed loop: L{closedloop}.
  6. L{identity}: whether the policies in force are reproduced.
  7. L{totals}: what the L{decisions} come to.
"""
