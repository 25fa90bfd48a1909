"""Docker's volume plugin: a container that others have Docker start gets its quota by mounting a volume of ours."""
