-- A small manifest is kept with its version until its file is known to be on the disk: then one write makes a commit
-- durable, and what a loss of power takes of the file is written again from here.
ALTER TABLE table_versions ADD COLUMN manifest {bytes};

ALTER TABLE removed_versions ADD COLUMN manifest {bytes};

-- Whoever opens a table asks for its own.
DROP INDEX table_versions_pending;

CREATE INDEX table_versions_pending ON table_versions (table_id, created_at) WHERE NOT finalized;
