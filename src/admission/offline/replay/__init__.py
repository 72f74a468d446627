"""
What other policies would have made of recorded requests.

No Spark here: everything takes and gives iterators of Arrow batches, and what
goes to other processes can be pickled.  In their order:

  1. L{boots}: what is known of each run of a server.
  2. L{candidates} and L{trials}: what to try there, and under which limits.
  3. L{offers}: what a candidate may see of each request.
  4. Open loop: L{openloop}, of rows sorted by C{OPEN_GROUP} and C{OPEN_ORDER},
     for large clients in L{slices}.
  5. Closed loop: L{keys} finds which connections belong together, then
     L{closedloop} takes rows sorted by C{CLOSED_GROUP} and C{CLOSED_ORDER}.
  6. L{identity}: whether the policies in force are reproduced.
  7. L{results}: what the L{decisions} come to.
"""
