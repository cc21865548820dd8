-- Enforced primary keys. A version is recorded only under the key that its table has at that moment; `checked_key` names
-- the declaration that all rows of a version were found to fulfil, so that the next commit is compared with that one.
ALTER TABLE tables ADD COLUMN primary_key TEXT;

ALTER TABLE removed_tables ADD COLUMN primary_key TEXT;

ALTER TABLE table_versions ADD COLUMN checked_key TEXT;

ALTER TABLE removed_versions ADD COLUMN checked_key TEXT;
