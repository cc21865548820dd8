-- How old the newest commit of a table, or the last refresh of a view, may be. stale_since is when a server has noticed
-- that it is older, NULL while it is not. Rows hang on the id of a table, as policies do.
CREATE TABLE max_ages (
    table_id BIGINT NOT NULL PRIMARY KEY,
    max_age_ms BIGINT NOT NULL,
    stale_since BIGINT
);

CREATE INDEX transactions_refreshed ON transactions (table_id, created_at)
    WHERE status = 'Succeeded' AND kind IN ('refresh', 'refresh_view');
