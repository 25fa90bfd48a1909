"""What only another host has, output and terminals of its containers, without that the web side reaches that host.

Both sides reach PostgreSQL and Redis, and nothing else is asked of them. The web side writes an order, a row that only
the node's own role may read, with a key made for this one session; a hint tells the node to look. It takes the row,
once, and from then on the two talk over two lists in Redis (carrier.py), in messages sealed with that key. All nodes
have the password of that Redis: who listens there sees how much passes and when, and who writes there can end a
session, but neither read it nor say anything in it.

What passes is a stream of bytes each way, as over a UNIX socket; web/console/frames.py says what they mean.
"""
