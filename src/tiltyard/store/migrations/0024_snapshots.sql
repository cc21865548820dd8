-- Named sets of versions over tables. Each version has a tag of the snapshot's name, which keeps it from being collected;
-- `complete` is 0 until all tags are there, and again from when they are dropped, so what a killed server leaves behind is
-- no snapshot. `token` is of the call that makes or drops it. Members hang on the id of a table, as views do; `path` is
-- what the table was called then, as JSON.
CREATE TABLE snapshots (
    name {text} NOT NULL PRIMARY KEY,
    token {text} NOT NULL,
    complete BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    created_by {text} NOT NULL
);

CREATE TABLE snapshot_tables (
    snapshot {text} NOT NULL REFERENCES snapshots (name) ON DELETE CASCADE,
    table_id BIGINT NOT NULL,
    version BIGINT NOT NULL,
    path TEXT NOT NULL,
    PRIMARY KEY (snapshot, table_id)
);
