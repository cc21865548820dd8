-- Who let a computed column refresh by itself: `identity` is the hash of what its values are computed by, `definer` a
-- principal as JSON. The column's declaration lies in the table's own metadata, where whoever writes the table could
-- change it. Rows hang on the id of a table, as views do.
CREATE TABLE column_refreshes (
    table_id BIGINT NOT NULL,
    identity {text} NOT NULL,
    definer TEXT NOT NULL,
    PRIMARY KEY (table_id, identity)
);
