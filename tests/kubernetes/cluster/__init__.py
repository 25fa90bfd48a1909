"""A cluster for tests, as strict as the real one and more: its API server, its scheduler, a kubelet."""
