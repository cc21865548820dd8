-- What a version's own transaction says of its rows, as JSON, for its event: NULL where nothing is known, or no events are
-- kept. The triggers that
-- read it are created by number 44 (`events/triggers.py`).
ALTER TABLE table_versions ADD COLUMN changed_rows TEXT;
