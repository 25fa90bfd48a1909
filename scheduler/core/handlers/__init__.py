"""What each event changes, a file for each subject. `Step.finish` does what follows from a change by itself."""
