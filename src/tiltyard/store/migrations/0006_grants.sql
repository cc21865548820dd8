-- Roles: names that stand for their members, which are principals ('principal:ann') or groups of a token ('group:ops').
CREATE TABLE roles (
    name {text} PRIMARY KEY,
    created_at BIGINT NOT NULL
);

CREATE TABLE role_members (
    role {text} NOT NULL REFERENCES roles (name) ON DELETE CASCADE,
    member {text} NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (role, member)
);

CREATE INDEX role_members_member ON role_members (member);

-- Who may do what with which object. A grantee is a member as above, or a role ('role:analysts'); an object is a 'table'
-- or a 'namespace' with the id of its record, or the 'server' with id 0; privileges are bits (`access/privileges.py`).
-- Ids are never given twice, so what is created anew under an old name inherits nothing.
CREATE TABLE grants (
    grantee {text} NOT NULL,
    kind {text} NOT NULL,
    object_id BIGINT NOT NULL,
    privileges BIGINT NOT NULL,
    granted_by {text} NOT NULL,
    granted_at BIGINT NOT NULL,
    PRIMARY KEY (grantee, kind, object_id)
);

CREATE INDEX grants_object ON grants (kind, object_id);

INSERT INTO generations (name, number) VALUES ('grants', 0);
