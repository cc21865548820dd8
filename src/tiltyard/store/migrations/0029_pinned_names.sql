-- A secret has an id, which is never given twice: one that is dropped and made anew under its name is another one.
ALTER TABLE named_secrets ADD COLUMN secret_id {text} NOT NULL DEFAULT '';

UPDATE named_secrets SET secret_id = CAST(namespace_id AS TEXT) || ' ' || CAST(created_at AS TEXT) || ' ' || name;

CREATE UNIQUE INDEX named_secrets_id ON named_secrets (secret_id);

-- Who registered a version, as JSON of a principal ('': created_by alone is known), and the ids of the secrets that its
-- definition names, by their variables. Those of earlier versions are found as the names resolve now
-- (`store/earlier_names.py`).
ALTER TABLE function_versions ADD COLUMN registrant TEXT NOT NULL DEFAULT '';

ALTER TABLE function_versions ADD COLUMN secret_ids TEXT NOT NULL DEFAULT '{}';

-- The namespace whose tables are published, by its id: another one that takes its name is not.
ALTER TABLE publications ADD COLUMN namespace_id BIGINT;
