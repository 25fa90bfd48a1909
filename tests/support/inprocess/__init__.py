"""A host in the test's own process and on virtual time: see README.md in this folder."""
