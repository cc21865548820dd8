-- Who may ask. A name is never given twice, so principals are disabled, not deleted.
CREATE TABLE principals (
    name {text} PRIMARY KEY,
    administrator BOOLEAN NOT NULL,
    disabled BOOLEAN NOT NULL,
    created_at BIGINT NOT NULL
);

-- `id` is the part of a key that may be seen, `hash` the SHA-256 of its secret part, in hexadecimal.
CREATE TABLE api_keys (
    id {text} PRIMARY KEY,
    principal {text} NOT NULL REFERENCES principals (name),
    hash TEXT NOT NULL,
    note TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT,
    last_used_at BIGINT
);

CREATE INDEX api_keys_principal ON api_keys (principal);

-- Keys with which the servers sign tokens: 32 random bytes in hexadecimal. They sign for a while, and verify longer.
CREATE TABLE signing_keys (
    id {text} PRIMARY KEY,
    value TEXT NOT NULL,
    created_at BIGINT NOT NULL
);

CREATE INDEX signing_keys_created ON signing_keys (created_at);

-- A number for each thing that servers keep in memory: whoever changes the thing counts it up in the same transaction.
CREATE TABLE generations (
    name {text} PRIMARY KEY,
    number BIGINT NOT NULL
);

INSERT INTO generations (name, number) VALUES ('identity', 0);

-- Who asked for the work; null for what the servers do by themselves.
ALTER TABLE transactions ADD COLUMN asked_by {text};
