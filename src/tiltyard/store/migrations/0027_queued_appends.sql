-- Appends to tables that several servers write to at the same time: the server that has the table's turn commits those
-- of all servers as one version. A row is there for a moment, until its server has read the outcome: `version` is NULL
-- before the commit, and 0 where another server could not commit the rows. `holder` is the turn that committed them.
CREATE TABLE queued_appends (
    id {text} NOT NULL PRIMARY KEY,
    table_id BIGINT NOT NULL REFERENCES tables (id) ON DELETE CASCADE,
    branch {text} NOT NULL,
    content {bytes} NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    version BIGINT,
    holder {text}
);

CREATE INDEX queued_appends_waiting ON queued_appends (table_id, branch, created_at) WHERE version IS NULL;

-- Who commits the queued appends of a branch, until when at most; the holder is empty while nobody does. `expected` is
-- how many appends the next turn can expect.
CREATE TABLE append_turns (
    table_id BIGINT NOT NULL REFERENCES tables (id) ON DELETE CASCADE,
    branch {text} NOT NULL,
    holder {text} NOT NULL,
    expires_at BIGINT NOT NULL,
    expected BIGINT NOT NULL,
    PRIMARY KEY (table_id, branch)
);
