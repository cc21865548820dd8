-- Namespaces in which something was granted to a grantee: those of its grants, and all above them, so that it gets a
-- page of the namespaces that it sees by an index. `place_grants` adds them. One may stay when the last grant in it is
-- gone, until the namespace is: who reads this looks at the grants, too.
CREATE TABLE granted_namespaces (
    namespace_id BIGINT NOT NULL REFERENCES namespaces (id) ON DELETE CASCADE,
    grantee {text} NOT NULL,
    parent_id BIGINT,
    name {text} NOT NULL,
    PRIMARY KEY (namespace_id, grantee)
);

CREATE INDEX granted_namespaces_names ON granted_namespaces (grantee, parent_id, name);

WITH RECURSIVE up (grantee, id) AS (
    SELECT grantee, CASE kind WHEN 'table' THEN namespace_id ELSE object_id END FROM grants WHERE kind <> 'server'
    UNION
    SELECT up.grantee, namespaces.parent_id FROM up JOIN namespaces ON namespaces.id = up.id
    WHERE namespaces.parent_id IS NOT NULL
)
INSERT INTO granted_namespaces (namespace_id, grantee, parent_id, name)
SELECT namespaces.id, up.grantee, namespaces.parent_id, namespaces.name FROM up JOIN namespaces ON namespaces.id = up.id;
