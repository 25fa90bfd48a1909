"""A node of a Kubernetes cluster: its cards are offered to it, and what it allocates of them gets its quota."""
