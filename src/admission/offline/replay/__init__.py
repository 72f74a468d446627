"""
What other policies would have made of recorded requests.

No Spark here: everything takes and gives iterators of Arrow batches, and what
goes to other processes can be pickled.  In their order:

  1. L{boots}: what is known of each run of a server.
  2. L{candidates} and L{trials}: what to try there, and under which limits.
  3. L{offers}: what a candidate may see of each request.
  4. L{keys} finds which of them have to be replayed together, and L{lanes}
     which trials can share them; L{parcels} takes them there, and
     L{sortedrows} puts them in order.
  5. Open loop: L{openloop}, for large clients in L{slices}.  Closed loop:
     L{closedloop}.
  6. L{identity}: whether the policies in force are reproduced.
  7. L{results}: what the L{decisions} come to.
"""
