"""What an admin of PostgreSQL sets up once, so that the appliance's own role needs no right over roles.

`script` is SQL for psql, run by a superuser in the appliance's database. It makes the group of all nodes' roles, and a
schema of the superuser's with three functions, which the appliance's role may call and cannot change. They run with the
superuser's rights, each for one thing, and a role's name is made in them from the node's number: so whoever has the
appliance's role can make nodes' roles, whose rights are those that the appliance's role gives, and no other role.

    let_in(node, password)    the node's role may sign in, with this password; returns the role's name
    shut_out(node)            it may not sign in any more, and is no member of the group; false: not within TRIES
    gone(node, milliseconds)  ends its connections, then deletes the role; false: one is still there after that time

Between the last two lies a commit: only after it is a new connection refused.
"""

from django.conf import settings
from django.db import connection
from psycopg import sql

from web.services.joining import rules

SCHEMA = "gpushare_admin"
CONNECTIONS = 8  # at once: a scheduler has one, commands on its host have theirs
TRIES = 4  # seconds for taking the rights, from a node that changes its own role meanwhile
COMMAND = 'gpushare-manage node setup | sudo -u postgres psql -d "{}"'

# Names that the script's reader sees with their values: {app} the appliance's role, {group} that of all nodes,
# {prefix} what a node's role begins with, before the node's number.
_SCRIPT = """-- What gpushare needs of PostgreSQL for several nodes, once; again is harmless. As a superuser: {command}
\\set ON_ERROR_STOP on
BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;  -- what the appliance's role has made is not to be called here
SET LOCAL client_min_messages = warning;

DO $$
DECLARE
    each record;
BEGIN
    IF current_database() <> {database} THEN
        RAISE 'This is for the database %, and you are in %.', {database}, current_database();
    END IF;
    IF NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) OR current_user = {app_text} THEN
        RAISE 'This needs a superuser who is not %, the role of the appliance itself.', {app_text};
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {group_text}) THEN
        CREATE ROLE {group} NOLOGIN;
    END IF;
    SELECT rolsuper, rolcreaterole INTO each FROM pg_roles WHERE rolname = {app_text};
    IF each.rolsuper THEN
        RAISE WARNING 'The role % is a superuser: whoever has it can run programs on this host. Use another one.',
            {app_text};
    ELSIF each.rolcreaterole THEN
        ALTER ROLE {app} NOCREATEROLE;
    END IF;
    FOR each IN SELECT r.rolname FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.roleid
        WHERE m.member = {app_text}::regrole
    LOOP
        RAISE WARNING 'The role % is a member of %. If you did not mean that: REVOKE % FROM %.',
            {app_text}, each.rolname, quote_ident(each.rolname), quote_ident({app_text});
    END LOOP;
END $$;

DROP SCHEMA IF EXISTS {schema} CASCADE;
CREATE SCHEMA {schema};

CREATE FUNCTION {schema}.let_in(node bigint, password text) RETURNS text
    LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    its text := {prefix} || node;
    verb text := 'CREATE';
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = its) THEN
        verb := 'ALTER';
        IF EXISTS (SELECT FROM pg_roles WHERE rolname = its AND (
                rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls))
            OR EXISTS (SELECT FROM pg_auth_members WHERE member = its::regrole AND roleid <> {group_text}::regrole) THEN
            RAISE insufficient_privilege USING MESSAGE = format('the role %s has more rights than a node gets', its);
        END IF;
    END IF;
    EXECUTE format('%s ROLE %I LOGIN CONNECTION LIMIT {connections} PASSWORD %L', verb, its, password);
    EXECUTE format('GRANT %I TO %I', {group_text}, its);
    RETURN its;
END $$;

CREATE FUNCTION {schema}.shut_out(node bigint) RETURNS boolean
    LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '300ms' AS $$
DECLARE
    its text := {prefix} || node;
    ends timestamptz := clock_timestamp() + interval '{tries} seconds';
BEGIN
    WHILE EXISTS (SELECT FROM pg_roles WHERE rolname = its) LOOP
        PERFORM pg_stat_clear_snapshot();
        PERFORM pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = its;
        BEGIN
            EXECUTE format('ALTER ROLE %I NOLOGIN CONNECTION LIMIT 0 PASSWORD NULL', its);
            IF pg_has_role(its, {group_text}, 'MEMBER') THEN
                EXECUTE format('REVOKE %I FROM %I', {group_text}, its);
            END IF;
            RETURN true;
        EXCEPTION WHEN lock_not_available OR internal_error THEN  -- the node is changing its own password
            IF clock_timestamp() > ends THEN
                RETURN false;
            END IF;
        END;
    END LOOP;
    RETURN true;
END $$;

CREATE FUNCTION {schema}.gone(node bigint, milliseconds integer) RETURNS boolean
    LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '300ms' AS $$
DECLARE
    its text := {prefix} || node;
    ends timestamptz := clock_timestamp() + milliseconds * interval '1 millisecond';
    quiet integer := 0;
BEGIN
    WHILE quiet < 2 LOOP  -- twice: one that was being let in as the right was taken is not listed at once
        PERFORM pg_stat_clear_snapshot();
        PERFORM pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = its;
        quiet := CASE WHEN FOUND THEN 0 ELSE quiet + 1 END;
        IF quiet < 2 THEN
            IF clock_timestamp() > ends THEN
                RETURN false;
            END IF;
            PERFORM pg_sleep(0.05);
        END IF;
    END LOOP;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = its) THEN
        BEGIN
            EXECUTE format('DROP OWNED BY %I', its);
            EXECUTE format('DROP ROLE %I', its);
        EXCEPTION WHEN dependent_objects_still_exist OR lock_not_available OR internal_error THEN
            NULL;  -- it owns something in another database: the role stays, without any right
        END;
    END IF;
    RETURN true;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC;
GRANT USAGE ON SCHEMA {schema} TO {app};
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {app};
COMMIT;
"""


def script() -> str:
    """For psql."""
    app, database = (str(connection.settings_dict[name]) for name in ("USER", "NAME"))
    return (
        sql.SQL(_SCRIPT)
        .format(
            command=sql.SQL(command()),
            database=sql.Literal(database),
            app=sql.Identifier(app),
            app_text=sql.Literal(app),
            group=sql.Identifier(rules.group()),
            group_text=sql.Literal(rules.group()),
            prefix=sql.Literal(rules.name_of_role(0).removesuffix("0")),
            schema=sql.Identifier(SCHEMA),
            connections=sql.Literal(CONNECTIONS),
            tries=sql.Literal(TRIES),
        )
        .as_string(None)
    )


def command() -> str:
    """What is typed once on the host of PostgreSQL."""
    return COMMAND.format(settings.DATABASES["default"]["NAME"])


def is_done() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)", [SCHEMA])
        return bool(cursor.fetchone()[0])
