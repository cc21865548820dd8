-- A secret has an id, which is never given twice: one that is dropped and made anew under its name is another one. Those
-- that earlier servers have made, before the upgrade or beside later servers, have one of what they are.
ALTER TABLE named_secrets ADD COLUMN secret_id {text};

CREATE UNIQUE INDEX named_secrets_id ON named_secrets
    ((COALESCE(secret_id, CAST(namespace_id AS TEXT) || ' ' || CAST(created_at AS TEXT) || ' ' || name)));

-- Who registered a version, as JSON of a principal ('': created_by alone is known), and the ids of the secrets that its
-- definition names, by their variables. Those of earlier versions are found as the names resolve now
-- (`store/earlier_names.py`).
ALTER TABLE function_versions ADD COLUMN registrant TEXT NOT NULL DEFAULT '';

ALTER TABLE function_versions ADD COLUMN secret_ids TEXT NOT NULL DEFAULT '{}';

-- The namespace whose tables are published, by its id (0: it is gone): another one that takes its name is not. NULL is
-- what an earlier server leaves; the first synchronization by a later one sets it.
ALTER TABLE publications ADD COLUMN namespace_id BIGINT;
