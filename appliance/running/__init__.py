"""The embedded start and its two parts: who runs, as whom, and what is let in at the door."""
