"""The card helper: stops processes on a card and moves their memory to the host and back."""
