-- What narrows a table for those whom its policies bind: a filter of rows, masks of columns, and the roles that are
-- exempt, as JSON (`access/policies.py`). Policies hang on the id of a table, as grants do.
CREATE TABLE policies (
    table_id BIGINT NOT NULL,
    name {text} NOT NULL,
    document TEXT NOT NULL,
    set_by {text} NOT NULL,
    set_at BIGINT NOT NULL,
    PRIMARY KEY (table_id, name)
);
