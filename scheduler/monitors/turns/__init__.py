"""Who computes, whose turn it is, and what of it is reported."""
