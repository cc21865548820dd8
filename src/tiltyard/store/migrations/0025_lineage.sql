-- What the versions of tables were made from, as the commits of jobs say in a property: an index of those, so that a
-- table's sources, and the tables that were made from it, are found without opening any. `version` is the first one that
-- the job committed. `edge` is the same for all runs of a recurring job; `replaces` is 1 where all rows of the table are
-- from that commit, so that what was recorded before it says nothing of later versions. `sources` is the whole as JSON.
CREATE TABLE lineage (
    id {id},
    table_id BIGINT NOT NULL,
    branch {text} NOT NULL,
    version BIGINT NOT NULL,
    job {text} NOT NULL,
    kind {text} NOT NULL,
    code {text} NOT NULL,
    edge {text} NOT NULL,
    replaces BIGINT NOT NULL,
    sources TEXT NOT NULL,
    principal {text} NOT NULL,
    created_at BIGINT NOT NULL,
    UNIQUE (table_id, branch, job)
);

CREATE INDEX lineage_by_edge ON lineage (table_id, branch, edge, version);

CREATE INDEX lineage_by_version ON lineage (table_id, branch, version);

CREATE INDEX lineage_by_replacement ON lineage (table_id, branch, replaces, version);

CREATE TABLE lineage_sources (
    lineage_id BIGINT NOT NULL REFERENCES lineage (id) ON DELETE CASCADE,
    position BIGINT NOT NULL,
    table_id BIGINT,
    branch {text} NOT NULL,
    place {text} NOT NULL,
    PRIMARY KEY (lineage_id, position)
);

CREATE INDEX lineage_sources_by_table ON lineage_sources (table_id);

CREATE INDEX lineage_sources_by_place ON lineage_sources (place);
