-- Orders of a table that failed are told until somebody gives them again: an index that cannot be built.
CREATE INDEX transactions_failed ON transactions (table_id) WHERE status = 'Failed';
