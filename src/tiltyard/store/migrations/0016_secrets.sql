-- Secrets of functions. The value is encrypted with a key that is not in the catalog (key_id says which), nonce and
-- ciphertext in base64. namespace_id is no foreign key: they stay with a dropped namespace for as long as it is restored.
CREATE TABLE named_secrets (
    namespace_id BIGINT NOT NULL,
    name {text} NOT NULL,
    key_id {text} NOT NULL,
    value TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (namespace_id, name)
);
