-- Who made a materialized view, and what of: the digest of its definition, which lies in the table's own metadata, where
-- whoever writes the table could change it. `definer` is a principal as JSON. Views hang on the id of a table, as
-- grants do.
CREATE TABLE views (
    table_id BIGINT NOT NULL PRIMARY KEY,
    definition {text} NOT NULL,
    definer TEXT NOT NULL
);
