-- Classifications: a key and a value on a namespace, a table or a column. An object is named by its kind and the id of its
-- record, as in grants; of a column that is the id of its row below.
CREATE TABLE classifications (
    kind {text} NOT NULL,
    object_id BIGINT NOT NULL,
    key {text} NOT NULL,
    value {text} NOT NULL,
    set_by {text} NOT NULL,
    set_at BIGINT NOT NULL,
    PRIMARY KEY (kind, object_id, key)
);

CREATE INDEX classifications_key ON classifications (key, kind, object_id);

-- Columns that are classified: Lance's id of the field, which renaming keeps, and its path, which a cast keeps; NULL once the
-- column was dropped. Earlier pairs of both, as JSON, tell the column in versions that may be restored.
CREATE TABLE classified_columns (
    id {id},
    table_id BIGINT NOT NULL,
    field_id BIGINT NOT NULL,
    path {text},
    earlier TEXT NOT NULL,
    UNIQUE (table_id, path)
);

-- Policies of the whole catalog that bind by a classification, each a document of JSON (`access/classification_policies`).
CREATE TABLE classification_policies (
    name {text} NOT NULL PRIMARY KEY,
    document TEXT NOT NULL,
    set_by {text} NOT NULL,
    set_at BIGINT NOT NULL
);
