"""Oneself, and for admins: people, groups, allowances and the audit log."""
