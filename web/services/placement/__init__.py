"""Where a launch goes: the node, its GPUs, and the host that accepts what a Swarm has placed."""
