"""What all calls have in common: who asks, how one asks, and how it is answered or refused."""
