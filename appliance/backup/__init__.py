"""Backups: one file with all that cannot be made again, and putting it back onto an empty host.

A tar of `about.json`, the database (SQLite's file, or what `pg_dump` writes), `secret-key`, `audit-anchor`,
`admin-token` and `settings.env`, for its owner's eyes only; with a passphrase as one OpenPGP message, which any `gpg`
opens. Containers' output and volumes are not in it.

The anchor is read before the database: it then names a seal that the copy has.
"""

KEPT = ("secret-key", "audit-anchor", "admin-token")  # files of GPUSHARE_HOME
ABOUT, SETTINGS = "about.json", "settings.env"


class Failed(Exception):
    """With a sentence: what happened and what to do."""
