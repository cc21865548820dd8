-- The namespace of a job's object, which outlives its table: so that a database lists the jobs of what was dropped in it.
ALTER TABLE transactions ADD COLUMN namespace_id BIGINT;

UPDATE transactions SET namespace_id = (SELECT namespace_id FROM tables WHERE tables.id = transactions.table_id);
