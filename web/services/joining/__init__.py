"""Hosts that join: an invitation with a token (invitations.py), a PostgreSQL role of the host's own (roles.py), and
what that role may (rules.py). docs/nodes.md says what whoever steals such a host can do, and what not."""
