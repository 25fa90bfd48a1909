"""What a node's own PostgreSQL role may ask and do beyond its rows (rules.py), as functions and triggers in SQL."""

from web.services.joining import planned

PLACED = "Placed by Swarm."
HERE = "gpushare_node()"
NEXT = "gpushare_next_command()"  # number of a command
MINE = f"node_id = {HERE}"

# The same in SQL as `_wanted` in web/services/placement/accept_placement.py; $1 and $2 are the launch and its key.
_WANTED = "id = $1 AND handed = $2 AND handed <> '' AND kill_requested_at IS NULL AND finished_at IS NULL"
_DEFINER = "LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp"

OUR_FUNCTIONS = r"""SELECT format('%I(%s)', proname, pg_get_function_identity_arguments(oid)) FROM pg_proc
    WHERE pronamespace = 'public'::regnamespace AND proname LIKE 'gpushare\_%'"""

# They run as the tables' owner, and so see all rows: each answers one question.
FUNCTIONS = f"""
CREATE OR REPLACE FUNCTION gpushare_node() RETURNS bigint {_DEFINER} AS
    $$SELECT id FROM web_node WHERE role = session_user AND role <> ''$$;
CREATE OR REPLACE FUNCTION gpushare_node_name() RETURNS text {_DEFINER} AS
    $$SELECT name::text FROM web_node WHERE role = session_user AND role <> ''$$;
CREATE OR REPLACE FUNCTION gpushare_has(container uuid) RETURNS boolean {_DEFINER} AS
    $$SELECT EXISTS (SELECT 1 FROM web_container WHERE id = container AND {MINE})$$;
CREATE OR REPLACE FUNCTION gpushare_has_gpu(gpu bigint) RETURNS boolean {_DEFINER} AS
    $$SELECT EXISTS (SELECT 1 FROM web_gpu WHERE id = gpu AND node_id = {HERE})$$;

{planned.functions(_DEFINER, MINE)}
-- A node sees its own commands' numbers alone. One far above all others would leave none for those that follow.
CREATE OR REPLACE FUNCTION {NEXT} RETURNS bigint {_DEFINER} AS
    $$SELECT coalesce(max(number), 0) + 1 FROM web_command$$;

-- A card that its node has started without, or that was removed, and on which nobody has a quota any more:
-- scheduler/store/cards.py.
CREATE OR REPLACE FUNCTION gpushare_take_card(card text) RETURNS boolean
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp AS
    $$WITH taken AS (
        UPDATE web_gpu g SET node_id = {HERE}
        WHERE g.uuid = $1 AND NOT g.present AND {HERE} IS NOT NULL AND NOT EXISTS (
            SELECT FROM web_claim l JOIN web_container c ON c.id = l.container_id
            WHERE l.gpu_id = g.id AND c.finished_at IS NULL)
        RETURNING 1
      ) SELECT EXISTS (SELECT 1 FROM taken)$$;

-- What somebody's live containers on all nodes were promised (null: nothing yet) and ask for: web/people/allowances.py.
CREATE OR REPLACE FUNCTION gpushare_held(person bigint)
    RETURNS TABLE (container uuid, promised numeric, gpu_memory bigint, gpu_count integer) {_DEFINER} AS
    $$SELECT c.id, (SELECT sum(quota) FROM web_claim WHERE container_id = c.id), c.gpu_memory, c.gpu_count::integer
      FROM web_container c WHERE c.owner_id = person AND c.finished_at IS NULL$$;
CREATE OR REPLACE FUNCTION gpushare_hold(person bigint) RETURNS void
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp AS
    $$SELECT FROM auth_user WHERE id = person FOR NO KEY UPDATE$$;

-- Of what a Swarm has been handed, a node takes what it has the key of: web/services/placement/accept_placement.py.
CREATE OR REPLACE FUNCTION gpushare_is_wanted(launch uuid, key text) RETURNS boolean {_DEFINER} AS
    $$SELECT EXISTS (SELECT 1 FROM web_container WHERE {_WANTED})$$;
CREATE OR REPLACE FUNCTION gpushare_take(launch uuid, key text, volume text, mount text) RETURNS boolean
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp AS
    $$SELECT FROM auth_user WHERE id = (SELECT owner_id FROM web_container WHERE {_WANTED}) FOR NO KEY UPDATE;
      WITH taken AS (
        UPDATE web_container c SET node_id = {HERE}, node_reason = coalesce(nullif(c.node_reason, ''), '{PLACED}'),
            volume = $3, mount = $4, engine = '', queue_reason = ''
        WHERE {_WANTED} AND c.engine = 'swarm' AND c.mount = '' AND started_at IS NULL AND {HERE} IS NOT NULL
        RETURNING 1
      ) SELECT EXISTS (SELECT 1 FROM taken)$$;

-- Of what a Swarm begins again, who has the key sees all runs: web/services/runs.py.
CREATE OR REPLACE FUNCTION gpushare_runs(launch uuid, key text) RETURNS SETOF web_container {_DEFINER} AS
    $$SELECT c.* FROM web_container c, web_container f
      WHERE f.id = $1 AND f.handed = $2 AND f.handed <> '' AND f.restart <> '' AND $1 IN (c.id, c.run_of_id)$$;
CREATE OR REPLACE FUNCTION gpushare_removed_runs(launch uuid, key text) RETURNS SETOF uuid {_DEFINER} AS
    $$SELECT r.id FROM gpushare_runs($1, $2) r
      WHERE EXISTS (SELECT FROM web_command WHERE container_id = r.id AND kind = 'remove' AND outcome <> 'refused')$$;
CREATE OR REPLACE FUNCTION gpushare_is_named(asked text) RETURNS boolean {_DEFINER} AS
    $$SELECT EXISTS (SELECT 1 FROM web_container WHERE name = $1 AND finished_at IS NULL)$$;

-- What was asked for here stays as it was; of a container that Docker starts it is found out later.
CREATE OR REPLACE FUNCTION gpushare_asked_stays() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF gpushare_node() IS NOT NULL AND OLD.mount = '' AND (OLD.name, OLD.image, OLD.command, OLD.memory, OLD.cpus)
        IS DISTINCT FROM (NEW.name, NEW.image, NEW.command, NEW.memory, NEW.cpus) THEN
        RAISE insufficient_privilege USING MESSAGE = 'a node does not change what was asked for';
    END IF;
    RETURN NEW;
END $$;

-- A node's own seal is the only thing that it may add to the chain.
CREATE OR REPLACE FUNCTION gpushare_chain_grows() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF gpushare_node() IS NOT NULL AND (NEW.id <> OLD.id OR NEW.number <> OLD.number + 1 OR NOT EXISTS (
        SELECT 1 FROM web_seal
        WHERE number = NEW.number AND previous = OLD.hash AND hash = NEW.hash AND node = gpushare_node_name()
    )) THEN
        RAISE insufficient_privilege USING MESSAGE = 'a node adds its own seals to the end of the chain, nothing else';
    END IF;
    RETURN NEW;
END $$;

-- What it adds is under a seal that comes with it: nobody else adds one before it is done.
CREATE OR REPLACE FUNCTION gpushare_under_its_seal() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    last bigint;
BEGIN
    IF gpushare_node() IS NOT NULL THEN
        SELECT number INTO last FROM web_chain WHERE id = 1 FOR UPDATE;
        IF EXISTS (SELECT FROM added WHERE seal_id <> last + 1) THEN
            RAISE insufficient_privilege USING MESSAGE = 'a node adds to the audit log under its own seal';
        END IF;
    END IF;
    RETURN NULL;
END $$;

-- A seal that the chain did not end with would be in everybody's way for ever.
CREATE OR REPLACE FUNCTION gpushare_seal_is_the_end() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF gpushare_node() IS NOT NULL AND NOT EXISTS (SELECT FROM web_chain WHERE id = 1 AND number >= NEW.number) THEN
        RAISE insufficient_privilege USING MESSAGE = 'a node adds a seal and moves the end of the chain, at once';
    END IF;
    RETURN NULL;
END $$;
"""

TRIGGERS = (
    """CREATE OR REPLACE TRIGGER gpushare_asked_stays BEFORE UPDATE ON web_container
       FOR EACH ROW EXECUTE FUNCTION gpushare_asked_stays()""",
    """CREATE OR REPLACE TRIGGER gpushare_chain_grows BEFORE UPDATE ON web_chain
       FOR EACH ROW EXECUTE FUNCTION gpushare_chain_grows()""",
    *(
        f"""CREATE OR REPLACE TRIGGER gpushare_under_its_seal AFTER INSERT ON {table} REFERENCING NEW TABLE AS added
            FOR EACH STATEMENT EXECUTE FUNCTION gpushare_under_its_seal()"""
        for table in ("web_allocationevent", "web_auditentry")
    ),
    # At the end of the transaction; such a trigger cannot be replaced.
    """DO $$ BEGIN
        IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'gpushare_seal_is_the_end') THEN
            CREATE CONSTRAINT TRIGGER gpushare_seal_is_the_end AFTER INSERT ON web_seal DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION gpushare_seal_is_the_end();
        END IF;
    END $$""",
)
