#!/bin/sh
# Runs once, when the database is empty: the appliance's role and its database. The superuser, as which this runs, is
# reached from inside the container alone, and has no password.
set -e
psql -v ON_ERROR_STOP=1 -U postgres -v password="$POSTGRES_PASSWORD" <<'SQL'
CREATE ROLE gpushare LOGIN PASSWORD :'password';
CREATE DATABASE gpushare OWNER gpushare;
ALTER ROLE postgres PASSWORD NULL;
SQL
