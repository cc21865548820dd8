-- What the columns of a commit were made from: JSON of a pair, the origins of the columns (null where they are not known)
-- and why they are not. Commits that were recorded before say nothing of columns.
ALTER TABLE lineage ADD COLUMN column_origins TEXT NOT NULL DEFAULT '[null, ""]';
