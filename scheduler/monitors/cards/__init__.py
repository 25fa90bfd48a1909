"""Cards as they fail: which faults take one out of service, and who is notified."""
