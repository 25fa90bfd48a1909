"""What a node's own role may of planned launches: begin what people planned to run there, and say how it goes."""

OBSERVED = ("progress", "started_at", "finished_at", "ended", "reason", "waits", "place")
OF_MINE = "gpushare_plans(planned_id, owner_id)"  # of a container
LAUNCHES = "kind = 'launch' AND gpushare_is_planned(container_id)"  # of a command


def functions(definer: str, mine: str) -> str:
    """In SQL. `definer`: how they run; `mine`: that a row is of the node's."""
    return f"""
-- What people planned to run here, for its owner; and how what it is to begin after has ended, wherever that was:
-- scheduler/store/planned_runs.py.
CREATE OR REPLACE FUNCTION gpushare_plans(planned uuid, person bigint) RETURNS boolean {definer} AS
    $$SELECT EXISTS (SELECT 1 FROM web_planned WHERE id = planned AND owner_id = person AND {mine})$$;
CREATE OR REPLACE FUNCTION gpushare_is_planned(container uuid) RETURNS boolean {definer} AS
    $$SELECT EXISTS (SELECT 1 FROM web_container WHERE id = container AND planned_id IS NOT NULL AND {mine})$$;
CREATE OR REPLACE FUNCTION gpushare_ends(wanted uuid[])
    RETURNS TABLE (id uuid, finished boolean, ended text) {definer} AS
    $$SELECT c.id, c.finished_at IS NOT NULL, CASE WHEN c.kill_requested_at IS NOT NULL THEN 'killed'
          WHEN c.exit_code = 0 THEN 'ok' ELSE 'failed' END
      FROM web_container c WHERE c.id = ANY(wanted)
      UNION ALL
      SELECT p.id, p.finished_at IS NOT NULL, CASE WHEN p.ended <> 'cancelled' THEN p.ended
          WHEN p.started_at IS NULL THEN 'not_started' ELSE 'failed' END
      FROM web_planned p WHERE p.id = ANY(wanted)$$;"""
