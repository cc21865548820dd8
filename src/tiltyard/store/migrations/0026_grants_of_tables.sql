-- Where the table of a grant is, and its name: so that one with very many grants gets a page of its tables by an index.
-- `place_grants` keeps them as the table has them; a table in the trash leaves them as they were.
ALTER TABLE grants ADD COLUMN namespace_id BIGINT;

ALTER TABLE grants ADD COLUMN table_name {text};

UPDATE grants SET
    namespace_id = (SELECT tables.namespace_id FROM tables WHERE tables.id = grants.object_id),
    table_name = (SELECT tables.name FROM tables WHERE tables.id = grants.object_id)
WHERE kind = 'table';

CREATE INDEX grants_tables ON grants (grantee, namespace_id, table_name) WHERE kind = 'table';
