"""Containers that others have Docker start, with volumes of ours."""
