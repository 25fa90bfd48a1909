"""What only another host has, output, terminals and ports of its containers, without that the web side reaches it.

The node's scheduler dials the web side: one WebSocket at its public address, kept open. In it passes ssh, by asyncssh:
one sealed connection with a channel for each stream. The node is its server and the web side its client, so only the
web side opens streams. It knows the node by the key that this scheduler has made at its start and written into its
own row, where nobody else may write; the node knows the web side by a key made of its own audit key (carrying.py).

Any process of the web side's host reaches a node by a UNIX socket for each kind of stream (links.py, reaching.py).
What passes is a stream of bytes each way; web/console/frames.py says what they mean.
"""
