SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.api_keys (
    id text NOT NULL COLLATE pg_catalog."C",
    principal text NOT NULL COLLATE pg_catalog."C",
    hash text NOT NULL,
    note text NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint,
    revoked_at bigint,
    last_used_at bigint
);
CREATE TABLE public.audit (
    at bigint NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    principal text NOT NULL COLLATE pg_catalog."C",
    method text NOT NULL COLLATE pg_catalog."C",
    operation text NOT NULL COLLATE pg_catalog."C",
    object text NOT NULL COLLATE pg_catalog."C",
    outcome text NOT NULL COLLATE pg_catalog."C",
    status bigint NOT NULL,
    code bigint,
    request_id text NOT NULL,
    address text NOT NULL,
    micros bigint NOT NULL,
    context text NOT NULL
);
CREATE TABLE public.clone_sources (
    table_id bigint NOT NULL,
    location text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE public.deleted_versions (
    table_id bigint NOT NULL,
    branch text NOT NULL COLLATE pg_catalog."C",
    first bigint NOT NULL,
    beyond bigint NOT NULL,
    deleted_at bigint NOT NULL
);
CREATE TABLE public.doomed_folders (
    location text NOT NULL COLLATE pg_catalog."C",
    due_at bigint NOT NULL,
    transaction_id text COLLATE pg_catalog."C",
    reason text NOT NULL COLLATE pg_catalog."C",
    claims bigint NOT NULL
);
CREATE TABLE public.generations (
    name text NOT NULL COLLATE pg_catalog."C",
    number bigint NOT NULL
);
CREATE TABLE public.grants (
    grantee text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    object_id bigint NOT NULL,
    privileges bigint NOT NULL,
    granted_by text NOT NULL COLLATE pg_catalog."C",
    granted_at bigint NOT NULL
);
CREATE TABLE public.job_parts (
    transaction_id text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL
);
CREATE TABLE public.namespaces (
    id bigint NOT NULL,
    parent_id bigint,
    name text NOT NULL COLLATE pg_catalog."C",
    properties text NOT NULL,
    created_at bigint NOT NULL,
    CONSTRAINT namespaces_check CHECK (((id = 1) = (parent_id IS NULL)))
);
ALTER TABLE public.namespaces ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.namespaces_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.policies (
    table_id bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    document text NOT NULL,
    set_by text NOT NULL COLLATE pg_catalog."C",
    set_at bigint NOT NULL
);
CREATE TABLE public.principals (
    name text NOT NULL COLLATE pg_catalog."C",
    administrator boolean NOT NULL,
    disabled boolean NOT NULL,
    created_at bigint NOT NULL
);
CREATE TABLE public.removed_namespaces (
    id bigint NOT NULL,
    removal text NOT NULL COLLATE pg_catalog."C",
    top boolean NOT NULL,
    parent_id bigint NOT NULL,
    path text NOT NULL COLLATE pg_catalog."C",
    properties text NOT NULL,
    created_at bigint NOT NULL,
    removed_at bigint NOT NULL,
    due_at bigint NOT NULL
);
CREATE TABLE public.removed_tables (
    id bigint NOT NULL,
    removal text COLLATE pg_catalog."C",
    namespace text NOT NULL COLLATE pg_catalog."C",
    namespace_id bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    location text NOT NULL COLLATE pg_catalog."C",
    properties text NOT NULL,
    managed boolean NOT NULL,
    declared boolean NOT NULL,
    registered boolean NOT NULL,
    created_at bigint NOT NULL,
    dropped boolean NOT NULL,
    removed_at bigint NOT NULL,
    due_at bigint NOT NULL
);
CREATE TABLE public.removed_versions (
    table_id bigint NOT NULL,
    branch text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    staged_path text NOT NULL,
    manifest_path text NOT NULL,
    manifest_size bigint,
    e_tag text,
    metadata text NOT NULL,
    naming_scheme text NOT NULL,
    created_at bigint NOT NULL,
    finalized boolean NOT NULL,
    transaction_id text COLLATE pg_catalog."C",
    manifest bytea
);
CREATE TABLE public.requests (
    id text NOT NULL COLLATE pg_catalog."C",
    scope text NOT NULL,
    fingerprint text COLLATE pg_catalog."C",
    owner text NOT NULL COLLATE pg_catalog."C",
    lease_until bigint NOT NULL,
    attempts bigint NOT NULL,
    status bigint,
    body text,
    table_id bigint,
    branch text COLLATE pg_catalog."C",
    version bigint,
    heard boolean NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL
);
CREATE TABLE public.role_members (
    role text NOT NULL COLLATE pg_catalog."C",
    member text NOT NULL COLLATE pg_catalog."C",
    created_at bigint NOT NULL
);
CREATE TABLE public.roles (
    name text NOT NULL COLLATE pg_catalog."C",
    created_at bigint NOT NULL
);
CREATE TABLE public.schema_migrations (
    version bigint NOT NULL,
    applied_at bigint NOT NULL
);
CREATE TABLE public.secrets (
    name text NOT NULL,
    value text NOT NULL
);
CREATE TABLE public.signing_keys (
    id text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL,
    created_at bigint NOT NULL
);
CREATE TABLE public.table_versions (
    table_id bigint NOT NULL,
    branch text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    staged_path text NOT NULL,
    manifest_path text NOT NULL,
    manifest_size bigint,
    e_tag text,
    metadata text NOT NULL,
    naming_scheme text NOT NULL,
    created_at bigint NOT NULL,
    finalized boolean NOT NULL,
    transaction_id text COLLATE pg_catalog."C",
    manifest bytea
);
CREATE TABLE public.tables (
    id bigint NOT NULL,
    namespace_id bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    location text NOT NULL COLLATE pg_catalog."C",
    properties text NOT NULL,
    managed boolean NOT NULL,
    declared boolean NOT NULL,
    registered boolean NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL
);
ALTER TABLE public.tables ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.tables_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.transactions (
    id text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    status text NOT NULL COLLATE pg_catalog."C",
    table_id bigint,
    payload text NOT NULL,
    properties text NOT NULL,
    error text,
    attempts bigint NOT NULL,
    lease_owner text COLLATE pg_catalog."C",
    available_at bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    asked_by text COLLATE pg_catalog."C"
);
CREATE TABLE public.upload_parts (
    upload_id text NOT NULL COLLATE pg_catalog."C",
    part_id text NOT NULL COLLATE pg_catalog."C",
    fragments text NOT NULL,
    num_rows bigint NOT NULL,
    created_at bigint NOT NULL
);
CREATE TABLE public.uploads (
    id text NOT NULL COLLATE pg_catalog."C",
    table_id bigint NOT NULL,
    branch text NOT NULL COLLATE pg_catalog."C",
    mode text NOT NULL COLLATE pg_catalog."C",
    created_at bigint NOT NULL
);
CREATE TABLE public.views (
    table_id bigint NOT NULL,
    definition text NOT NULL COLLATE pg_catalog."C",
    definer text NOT NULL
);
INSERT INTO public.api_keys VALUES ('0123456789abcdef', 'ann', '0f007385b6f9d4b7eeb2748605afe1a984a0a3bfa3f014d09e2a784ce9e5cd1a', '', 1795502977493, 4795502977491, NULL, NULL);
INSERT INTO public.generations VALUES ('identity', 2);
INSERT INTO public.generations VALUES ('grants', 3);
INSERT INTO public.grants VALUES ('role:analysts', 'namespace', 2, 2, 'everybody', 1795502977504);
INSERT INTO public.namespaces OVERRIDING SYSTEM VALUE VALUES (1, NULL, '', '{}', 0);
INSERT INTO public.namespaces OVERRIDING SYSTEM VALUE VALUES (2, 1, 'team', '{"owner":"ann"}', 1795502977032);
INSERT INTO public.namespaces OVERRIDING SYSTEM VALUE VALUES (3, 2, 'inner', '{}', 1795502977037);
INSERT INTO public.policies VALUES (1, 'some', '{"filter":"id < 3","masks":[],"exempt_roles":[]}', 'everybody', 1795502977519);
INSERT INTO public.principals VALUES ('ann', false, false, 1795502977491);
INSERT INTO public.role_members VALUES ('analysts', 'principal:ann', 1795502977496);
INSERT INTO public.roles VALUES ('analysts', 1795502977489);
INSERT INTO public.schema_migrations VALUES (1, 1795502976757);
INSERT INTO public.schema_migrations VALUES (2, 1795502976781);
INSERT INTO public.schema_migrations VALUES (3, 1795502976855);
INSERT INTO public.schema_migrations VALUES (4, 1795502976914);
INSERT INTO public.schema_migrations VALUES (5, 1795502976937);
INSERT INTO public.schema_migrations VALUES (6, 1795502976973);
INSERT INTO public.schema_migrations VALUES (7, 1795502976980);
INSERT INTO public.schema_migrations VALUES (8, 1795502976986);
INSERT INTO public.schema_migrations VALUES (9, 1795502976993);
INSERT INTO public.schema_migrations VALUES (10, 1795502977000);
INSERT INTO public.schema_migrations VALUES (11, 1795502977005);
INSERT INTO public.schema_migrations VALUES (12, 1795502977013);
INSERT INTO public.schema_migrations VALUES (13, 1795502977017);
INSERT INTO public.secrets VALUES ('paging', 'ed47a7e8f107b5cba80311ef073a39824bdcc8562745ab8a7a1ceb49a14d5f18');
INSERT INTO public.table_versions VALUES (1, '', 1, '@ROOT@/words-9287795af9d8457696a354dde3c178c8.lance/_versions/18446744073709551614.manifest-10ff73df-51d0-46c6-8871-608f6481785a', '_versions/18446744073709551614.manifest', 441, '988f79-661001d243ff2-1b9', '{}', 'V2', 1795502977080, true, NULL, NULL);
INSERT INTO public.table_versions VALUES (1, '', 2, '@ROOT@/words-9287795af9d8457696a354dde3c178c8.lance/_versions/18446744073709551613.manifest-e1e07586-5e8d-4c13-9ae6-8dfaf352dfb4', '_versions/18446744073709551613.manifest', 462, '988f7d-661001d249db3-1ce', '{}', 'V2', 1795502977107, true, NULL, NULL);
INSERT INTO public.table_versions VALUES (1, '', 3, '@ROOT@/words-9287795af9d8457696a354dde3c178c8.lance/_versions/18446744073709551612.manifest-d082eb6e-2f16-4eed-8e03-e31eb0fa7f2e', '_versions/18446744073709551612.manifest', 662, '988f82-661001d252a53-296', '{}', 'V2', 1795502977145, true, NULL, NULL);
INSERT INTO public.table_versions VALUES (1, 'side', 2, '@ROOT@/words-9287795af9d8457696a354dde3c178c8.lance/tree/side/_versions/18446744073709551613.manifest-741729b4-e660-4cd8-9af6-960e1e890b11', 'tree/side/_versions/18446744073709551613.manifest', 541, '988f8a-661001d2633f3-21d', '{}', 'V2', 1795502977210, true, NULL, NULL);
INSERT INTO public.table_versions VALUES (2, '', 1, '@ROOT@/plain-28c90876ee6e458cb087feae39081efc.lance/_versions/18446744073709551614.manifest-534bb4b9-e49f-4cf4-a59f-4701740e1a95', '_versions/18446744073709551614.manifest', 441, '988f94-661001d26d033-1b9', '{}', 'V2', 1795502977255, true, NULL, NULL);
INSERT INTO public.table_versions VALUES (2, '', 2, '@ROOT@/plain-28c90876ee6e458cb087feae39081efc.lance/_versions/18446744073709551613.manifest-d92ce669-b124-4c7d-8f68-170cb86aaee6', '_versions/18446744073709551613.manifest', 599, '988f9b-661001d2808b3-257', '{}', 'V2', 1795502977327, true, NULL, NULL);
INSERT INTO public.tables OVERRIDING SYSTEM VALUE VALUES (1, 2, 'words', '@ROOT@/words-9287795af9d8457696a354dde3c178c8.lance', '{}', true, false, false, 1795502977056, 1795502977084);
INSERT INTO public.tables OVERRIDING SYSTEM VALUE VALUES (2, 1, 'plain', '@ROOT@/plain-28c90876ee6e458cb087feae39081efc.lance', '{}', true, false, false, 1795502977224, 1795502977257);
INSERT INTO public.tables OVERRIDING SYSTEM VALUE VALUES (3, 2, 'declared', '@ROOT@/declared-a579ad7daa2248bfb2a520c34408b361.lance', '{}', true, true, false, 1795502977485, 1795502977485);
INSERT INTO public.transactions VALUES ('b2b4cdb6-42b9-40b9-b909-dde502798f5b', 'create_index', 'Succeeded', 2, '{"location":"@ROOT@/plain-28c90876ee6e458cb087feae39081efc.lance","branch":null,"column":"id","name":"by_id","index_type":"BTREE","parameters":{},"replaces":false}', '{"index_name":"by_id","column":"id","index_type":"BTREE","progress":"1.0","index_uuid":"a5a8a354-b262-4eda-94f1-30378649b4d0","stage":"build","num_indexed_rows":"3"}', NULL, 1, NULL, 1795502977345, 1795502977269, 1795502977346, 'everybody');
SELECT pg_catalog.setval('public.namespaces_id_seq', 3, true);
SELECT pg_catalog.setval('public.tables_id_seq', 3, true);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT api_keys_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (at, id);
ALTER TABLE ONLY public.clone_sources
    ADD CONSTRAINT clone_sources_pkey PRIMARY KEY (location, table_id);
ALTER TABLE ONLY public.deleted_versions
    ADD CONSTRAINT deleted_versions_pkey PRIMARY KEY (table_id, branch, first);
ALTER TABLE ONLY public.doomed_folders
    ADD CONSTRAINT doomed_folders_pkey PRIMARY KEY (location);
ALTER TABLE ONLY public.generations
    ADD CONSTRAINT generations_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.grants
    ADD CONSTRAINT grants_pkey PRIMARY KEY (grantee, kind, object_id);
ALTER TABLE ONLY public.job_parts
    ADD CONSTRAINT job_parts_pkey PRIMARY KEY (transaction_id, name);
ALTER TABLE ONLY public.namespaces
    ADD CONSTRAINT namespaces_parent_id_name_key UNIQUE (parent_id, name);
ALTER TABLE ONLY public.namespaces
    ADD CONSTRAINT namespaces_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.policies
    ADD CONSTRAINT policies_pkey PRIMARY KEY (table_id, name);
ALTER TABLE ONLY public.principals
    ADD CONSTRAINT principals_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.removed_namespaces
    ADD CONSTRAINT removed_namespaces_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.removed_tables
    ADD CONSTRAINT removed_tables_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.removed_versions
    ADD CONSTRAINT removed_versions_pkey PRIMARY KEY (table_id, branch, version);
ALTER TABLE ONLY public.requests
    ADD CONSTRAINT requests_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.role_members
    ADD CONSTRAINT role_members_pkey PRIMARY KEY (role, member);
ALTER TABLE ONLY public.roles
    ADD CONSTRAINT roles_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.schema_migrations
    ADD CONSTRAINT schema_migrations_pkey PRIMARY KEY (version);
ALTER TABLE ONLY public.secrets
    ADD CONSTRAINT secrets_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.signing_keys
    ADD CONSTRAINT signing_keys_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.table_versions
    ADD CONSTRAINT table_versions_pkey PRIMARY KEY (table_id, branch, version);
ALTER TABLE ONLY public.tables
    ADD CONSTRAINT tables_location_key UNIQUE (location);
ALTER TABLE ONLY public.tables
    ADD CONSTRAINT tables_namespace_id_name_key UNIQUE (namespace_id, name);
ALTER TABLE ONLY public.tables
    ADD CONSTRAINT tables_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.transactions
    ADD CONSTRAINT transactions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.upload_parts
    ADD CONSTRAINT upload_parts_pkey PRIMARY KEY (upload_id, part_id);
ALTER TABLE ONLY public.uploads
    ADD CONSTRAINT uploads_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.views
    ADD CONSTRAINT views_pkey PRIMARY KEY (table_id);
CREATE INDEX api_keys_principal ON public.api_keys USING btree (principal);
CREATE INDEX audit_object ON public.audit USING btree (object, at);
CREATE INDEX doomed_folders_due ON public.doomed_folders USING btree (due_at);
CREATE INDEX doomed_folders_transaction ON public.doomed_folders USING btree (transaction_id);
CREATE INDEX grants_object ON public.grants USING btree (kind, object_id);
CREATE INDEX removed_namespaces_due ON public.removed_namespaces USING btree (due_at);
CREATE INDEX removed_namespaces_path ON public.removed_namespaces USING btree (path) WHERE top;
CREATE INDEX removed_namespaces_removal ON public.removed_namespaces USING btree (removal);
CREATE INDEX removed_namespaces_removed ON public.removed_namespaces USING btree (removed_at, id) WHERE top;
CREATE INDEX removed_tables_due ON public.removed_tables USING btree (due_at) WHERE (NOT dropped);
CREATE INDEX removed_tables_location ON public.removed_tables USING btree (location);
CREATE INDEX removed_tables_name ON public.removed_tables USING btree (namespace, name);
CREATE INDEX removed_tables_removal ON public.removed_tables USING btree (removal);
CREATE INDEX removed_tables_removed ON public.removed_tables USING btree (removed_at, id);
CREATE INDEX removed_versions_transaction ON public.removed_versions USING btree (transaction_id) WHERE (transaction_id IS NOT NULL);
CREATE INDEX requests_expiring ON public.requests USING btree (expires_at);
CREATE INDEX requests_running ON public.requests USING btree (owner) WHERE (status IS NULL);
CREATE INDEX requests_unheard ON public.requests USING btree (fingerprint) WHERE ((NOT heard) OR (status IS NULL));
CREATE INDEX role_members_member ON public.role_members USING btree (member);
CREATE INDEX signing_keys_created ON public.signing_keys USING btree (created_at);
CREATE INDEX table_versions_pending ON public.table_versions USING btree (table_id, created_at) WHERE (NOT finalized);
CREATE INDEX table_versions_transaction ON public.table_versions USING btree (transaction_id) WHERE (transaction_id IS NOT NULL);
CREATE INDEX transactions_claimable ON public.transactions USING btree (available_at) WHERE (status = ANY (ARRAY['Queued'::text, 'Running'::text]));
CREATE INDEX transactions_created ON public.transactions USING btree (created_at, id);
CREATE INDEX transactions_failed ON public.transactions USING btree (table_id) WHERE (status = 'Failed'::text);
CREATE INDEX transactions_kind ON public.transactions USING btree (kind, created_at, id);
CREATE INDEX transactions_unfinished ON public.transactions USING btree (table_id) WHERE (status = ANY (ARRAY['Queued'::text, 'Running'::text]));
CREATE INDEX uploads_created ON public.uploads USING btree (created_at);
CREATE INDEX uploads_table ON public.uploads USING btree (table_id);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT api_keys_principal_fkey FOREIGN KEY (principal) REFERENCES public.principals(name);
ALTER TABLE ONLY public.job_parts
    ADD CONSTRAINT job_parts_transaction_id_fkey FOREIGN KEY (transaction_id) REFERENCES public.transactions(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.namespaces
    ADD CONSTRAINT namespaces_parent_id_fkey FOREIGN KEY (parent_id) REFERENCES public.namespaces(id);
ALTER TABLE ONLY public.removed_versions
    ADD CONSTRAINT removed_versions_table_id_fkey FOREIGN KEY (table_id) REFERENCES public.removed_tables(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.role_members
    ADD CONSTRAINT role_members_role_fkey FOREIGN KEY (role) REFERENCES public.roles(name) ON DELETE CASCADE;
ALTER TABLE ONLY public.table_versions
    ADD CONSTRAINT table_versions_table_id_fkey FOREIGN KEY (table_id) REFERENCES public.tables(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.tables
    ADD CONSTRAINT tables_namespace_id_fkey FOREIGN KEY (namespace_id) REFERENCES public.namespaces(id);
ALTER TABLE ONLY public.upload_parts
    ADD CONSTRAINT upload_parts_upload_id_fkey FOREIGN KEY (upload_id) REFERENCES public.uploads(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.uploads
    ADD CONSTRAINT uploads_table_id_fkey FOREIGN KEY (table_id) REFERENCES public.tables(id) ON DELETE CASCADE;
