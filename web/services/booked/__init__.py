"""What is known ahead of time: notices, windows of maintenance, and whom they concern."""
