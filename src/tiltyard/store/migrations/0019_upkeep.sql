-- Tables that got commits, and when upkeep is next due. table_id is no foreign key: commits are noted many at once, and
-- none may fail for a table that was dropped meanwhile. Until rests_until nothing is done: whoever looks at a table is
-- alone for that long, and so is a table that was just maintained. clean_at is when old versions are next looked for;
-- state is what the last look left, as JSON.
CREATE TABLE upkeep (
    table_id BIGINT PRIMARY KEY,
    changed_at BIGINT NOT NULL,
    due_at BIGINT NOT NULL,
    rests_until BIGINT NOT NULL,
    clean_at BIGINT,
    state TEXT NOT NULL
);

CREATE INDEX upkeep_due ON upkeep (due_at);
