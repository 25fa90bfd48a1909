"""people/, groups/, allowances/: for admins, and 403 for everybody else before anything is shown."""
