"""What can happen in a storm; who does it is in harm.py."""

PROCESSES = ("scheduler", "web", "parent", "program", "keeper")  # with Docker, a keeper is containerd's shim
SERVERS = ("dockerd", "postgres", "redis")  # where they are used
KILLS = (*PROCESSES, *SERVERS)
# The database locked or slow, the disk full, no descriptors, no memory, a wrong clock, no card, no hints, no processor.
TROUBLES = ("locked", "slow", "full", "descriptors", "memory", "clock", "card", "deaf", "starved")
