"""The cluster's API server, and what we say to it."""
