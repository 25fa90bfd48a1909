"""Everything that can happen to a small host, step by step, with the code that decides in the scheduler."""
