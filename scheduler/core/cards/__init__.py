"""Which container goes to which other card of its host."""
