"""Containers that go from one card of their host to another."""
