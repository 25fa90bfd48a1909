"""Where a launch is to go: what is asked of its node, and which of several is best."""
