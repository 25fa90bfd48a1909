"""Where a launch is to go, and whether it goes again: what is asked of its node, and which of several is best."""
