//! Lists in pages, databases, functions, secrets and authorization; requests that are repeated.

use std::collections::HashMap;
use std::time::Duration;

use futures::TryStreamExt;
use lancedb::authz::{
    AccessControlEntryRequest, GetPrincipalRequest, ListAccessControlEntriesRequest, ListRoleBindingsRequest, Object,
    Privilege, RoleBindingRequest, Subject,
};
use lancedb::catalog::{CatalogConnection, CreateDatabaseRequest, DropDatabaseRequest};
use lancedb::function::{FunctionApplication, FunctionErrorsRequest, FunctionRegistrationRequest};
use lancedb::listing::ListingOptions;
use lancedb::remote::{ClientConfig, RetryConfig};
use lancedb::{Connection, Error, connect, connect_catalog};
use serde_json::json;

use crate::rest::is_http;
use crate::{Outcome, ensure, report, rows};

const PRINCIPAL: &str = "ann";
const ROLE: &str = "readers";
const SOURCE: &str = "ZGVmIHR3aWNlKHgpOgogICAgcmV0dXJuIHggKiAyCg==";
const DIGEST: &str = "sha256:31f629930e52ef2d74edea83ab5cc82fb385048281490fc62799776d7ec87036";

fn pages_of_two() -> ListingOptions {
    ListingOptions::default().page_limit(2)
}

async fn on_lists(database: &Connection) {
    report("list_tables and table_names in pages", async {
        for number in 0..5 {
            database.create_table(format!("listed_{number}"), rows(0, 1)).execute().await?;
        }
        let all = ["listed_0", "listed_1", "listed_2", "listed_3", "listed_4"];
        let listed: Vec<String> = database.list_tables(&[], pages_of_two()).try_collect().await?;
        ensure(listed == all, "all, in pages of two")?;
        let mut listing = database.list_tables(&[], pages_of_two());
        let first = listing.next_page().await?.ok_or("no page")?;
        ensure(first.items == all[..2], "a page")?;
        let rest = pages_of_two().page_token(first.page_token.ok_or("no token")?);
        let rest: Vec<String> = database.list_tables(&[], rest).try_collect().await?;
        ensure(rest == all[2..], "and what follows its token")?;
        let names = database.table_names().limit(3).start_after("listed_1").execute().await?;
        ensure(names == all[2..], "after a name")?;
        ensure(database.table_names().execute().await? == all, "all")?;
        database.drop_table("listed_4", &[]).await?;
        Ok(())
    })
    .await;
    report("list_views and list_jobs in pages", async {
        for name in ["view_a", "view_b", "view_c"] {
            database.create_view(name, "SELECT id FROM listed_0", &[]).await?;
        }
        let views: Vec<String> = database.list_views(&[], pages_of_two()).try_collect().await?;
        ensure(views == ["view_a", "view_b", "view_c"], "three views")?;
        let described = database.describe_view("view_a", &[]).await?;
        ensure(described.schema.field_with_name("id").is_ok(), "its schema")?;
        let table = database.open_table("listed_0").execute().await?;
        for name in ["one", "two", "three"] {
            table.add_columns().computed(name, "id + 1").execute().await?;
            table.refresh_column_async(name).await?.wait().await?;
        }
        let jobs: Vec<_> = database.list_jobs(pages_of_two()).try_collect().await?;
        ensure(jobs.len() >= 3, "three jobs at least")?;
        let job = database.open_job(&jobs[0].job_id).await?;
        ensure(job.wait().await.is_ok(), "which has ended")
    })
    .await;
}

async fn on_databases(catalog: &CatalogConnection, name: &str) {
    report("list_databases in pages", async {
        let listed: Vec<String> = catalog.list_databases(None, Some(1)).try_collect().await?;
        ensure(listed.contains(&name.to_string()), "this one")?;
        ensure(catalog.list_databases(None, None).try_collect::<Vec<_>>().await? == listed, "without a limit")
    })
    .await;
    report("create_database and drop_database", async {
        let other = format!("{name}_other");
        let database = catalog.create_database(other.as_str()).await?;
        let again = catalog.create_database(other.as_str()).await;
        ensure(matches!(again, Err(Error::DatabaseAlreadyExists { .. })), "its name is taken")?;
        catalog.create_database(CreateDatabaseRequest::new(other.as_str()).exist_ok(true)).await?;
        database.create_table("inner", rows(0, 2)).execute().await?;
        let opened = catalog.connect_database(&other).await?;
        ensure(opened.open_table("inner").execute().await?.count_rows(None).await? == 2, "its table")?;
        ensure(catalog.drop_database(other.as_str()).await.is_err(), "it is not empty")?;
        catalog.drop_database(DropDatabaseRequest::new(other.as_str()).cascade(true)).await?;
        let gone = catalog.connect_database(&other).await;
        ensure(matches!(gone, Err(Error::DatabaseNotFound { .. })), "it is gone")?;
        let missing = catalog.drop_database(other.as_str()).await;
        ensure(matches!(missing, Err(Error::DatabaseNotFound { .. })), "and not found")?;
        Ok(catalog.drop_database(DropDatabaseRequest::new(other.as_str()).ignore_missing(true)).await?)
    })
    .await;
}

fn registration(name: &str, python: &str) -> serde_json::Result<FunctionRegistrationRequest> {
    serde_json::from_value(json!({
        "name": name,
        "artifact": {
            "kind": "python_callable", "digest": DIGEST, "entrypoint": "twice",
            "content": {"encoding": "base64", "data": SOURCE},
            "adapter": {"kind": "scalar_to_arrow_batch", "version": 1},
        },
        "signature": {
            "inputs": [{"name": "x", "arrow_type": "int64", "nullable": true}],
            "output": {"kind": "scalar", "arrow_type": "int64", "nullable": false},
        },
        "runtime": {
            "kind": "python", "python_version": python, "environment": {"kind": "pip", "packages": []},
        },
    }))
}

async fn on_functions(database: &Connection) {
    report("create_function, get_function and list_functions", async {
        for name in ["twice", "twice_b", "twice_c"] {
            let job = database.create_function_async(registration(name, "3.11")?, &[]).await?;
            let made = job.wait().await?;
            ensure((made.name(), made.version()) == (name, "1"), "its first version")?;
            ensure(made.created_at_millis() > 1_600_000_000_000, "when, in milliseconds")?;
        }
        let listed: Vec<_> = database.list_functions(&[], pages_of_two()).try_collect().await?;
        let names: Vec<&str> = listed.iter().map(|function| function.name()).collect();
        ensure(names == ["twice", "twice_b", "twice_c"], "three, in pages of two")?;
        let found = database.get_function("twice", "1", &[]).await?;
        ensure(found.created_at_millis() == listed[0].created_at_millis(), "the same")?;
        ensure(database.get_function("twice", "2", &[]).await.is_err(), "no such version")?;
        ensure(database.drop_function("twice_c", "1", &[]).await?, "dropped")
    })
    .await;
    report("add_columns with a function", async {
        let table = database.open_table("listed_1").execute().await?;
        let function = database.get_function("twice", "1", &[]).await?;
        let application = FunctionApplication::from_json(
            &json!({
                "function": function.reference(),
                "inputs": [{"parameter": "x", "kind": "column", "value": {"path": "id"}}],
                "output": function.signature().output,
            })
            .to_string(),
        )?;
        table.add_columns().function_as("doubled", application).execute().await?;
        let schema = table.schema().await?;
        let enabled = schema.field_with_name("doubled")?.metadata().get("computed_column.auto_refresh_enabled");
        ensure(enabled.is_some_and(|text| text == "true"), "automatic refreshes are permitted, as by default")?;
        ensure(table.count_rows(Some("doubled IS NULL".into())).await? == 1, "no value yet")?;
        let errors = table.function_errors(FunctionErrorsRequest::new().column("doubled")).await?;
        ensure(errors.records.is_empty(), "no row has failed")?;
        ensure(database.drop_function("twice", "1", &[]).await.is_err(), "it is in use")
    })
    .await;
}

async fn on_secrets(database: &Connection) {
    report("secrets", async {
        for name in ["secret_a", "secret_b", "secret_c"] {
            database.create_secret(name, "value", &[]).await?;
        }
        ensure(is_http(&database.create_secret("secret_a", "other", &[]).await, 409), "a name that is taken: 409")?;
        let listed: Vec<String> = database.list_secrets(&[], pages_of_two()).try_collect().await?;
        ensure(listed == ["secret_a", "secret_b", "secret_c"], "three, in pages of two")?;
        let before = database.describe_secret("secret_a", &[]).await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
        database.alter_secret("secret_a", "another", &[]).await?;
        let after = database.describe_secret("secret_a", &[]).await?;
        ensure(after.created_at_millis == before.created_at_millis, "the same one")?;
        ensure(after.updated_at_millis > before.updated_at_millis, "which has another value")?;
        for name in listed {
            database.drop_secret(name, &[]).await?;
        }
        ensure(database.describe_secret("secret_a", &[]).await.is_err(), "it is gone")
    })
    .await;
}

async fn on_authorization(catalog: &CatalogConnection, name: &str) -> Outcome {
    let authz = catalog.authz()?;
    let ann = Subject::principal_id(PRINCIPAL)?;
    report("add_acl, list_acls and delete_acl", async {
        let object: Object = format!("table:{name}:public$listed_0").parse()?;
        let grant = AccessControlEntryRequest::new(object.clone(), ann.clone(), Privilege::Select);
        authz.add_acl(grant.clone()).await?;
        ensure(is_http(&authz.add_acl(grant.clone()).await, 409), "granted already: 409")?;
        let mut request = ListAccessControlEntriesRequest::default();
        request.object = Some(object.clone());
        request.max_results = Some(100);
        let listed = authz.list_acls(request.clone()).await?.entries;
        let is_there = |privilege: &Privilege| listed.iter().any(|entry| &entry.privilege == privilege);
        ensure(is_there(&Privilege::Select), "the grant")?;
        ensure(listed.iter().all(|entry| entry.object == object), "of this table")?;
        let by_name = AccessControlEntryRequest::new(object, Subject::principal_name(PRINCIPAL)?, Privilege::Select);
        authz.delete_acl(by_name).await?;
        ensure(is_http(&authz.delete_acl(grant).await, 404), "no such grant: 404")?;
        let left = authz.list_acls(request).await?.entries;
        ensure(left.iter().all(|entry| entry.subject_id != ann), "none of hers")
    })
    .await;
    report("role bindings and get_principal", async {
        let binding = RoleBindingRequest::new(ann.clone(), ROLE)?;
        authz.add_role_binding(binding.clone()).await?;
        authz.add_role_binding(binding.clone()).await?;
        let mut request = ListRoleBindingsRequest::default();
        request.role = Some(ROLE.into());
        let bound = authz.list_role_bindings(request.clone()).await?.bindings;
        ensure(bound.len() == 1 && bound[0].subject_id == ann && bound[0].role == ROLE, "once")?;
        let info = authz.get_principal(GetPrincipalRequest::new(ann.clone())?).await?;
        ensure(info.principal_id == PRINCIPAL && info.roles == [ROLE], "with the role")?;
        authz.delete_role_binding(binding.clone()).await?;
        authz.delete_role_binding(binding).await?;
        ensure(authz.list_role_bindings(request).await?.bindings.is_empty(), "without it")?;
        let role = GetPrincipalRequest::new(Subject::role(ROLE)?);
        ensure(matches!(role, Err(Error::InvalidInput { .. })), "a role is no principal")
    })
    .await;
    Ok(())
}

/// A connection that asks for a version which is yet to come, and tries three times at most.
async fn impatient(url: &str, key: &str, name: &str, version: u64) -> lancedb::Result<Connection> {
    let retry_config =
        RetryConfig { retries: Some(3), backoff_factor: Some(0.1), backoff_jitter: Some(0.0), ..Default::default() };
    let extra_headers = HashMap::from([("x-lancedb-min-version".to_string(), version.to_string())]);
    let config = ClientConfig { retry_config, extra_headers, ..Default::default() };
    let builder = connect(&format!("db://{name}")).api_key(key).host_override(url).region("us-east-1");
    builder.client_config(config).execute().await
}

async fn on_retries(database: &Connection, url: &str, key: &str, name: &str) {
    report("requests that are repeated", async {
        let table = database.open_table("listed_2").execute().await?;
        let next = table.version().await? + 1;
        let waiting = impatient(url, key, name, next).await?;
        let refused = waiting.open_table("listed_2").execute().await;
        let is_503 = matches!(&refused, Err(Error::Retry { status_code: Some(code), request_failures: 3, .. })
            if code.as_u16() == 503);
        ensure(is_503, "a version that never comes: 503, three times")?;
        let waits = tokio::spawn(async move {
            waiting.open_table("listed_2").execute().await?.count_rows(None).await
        });
        tokio::time::sleep(Duration::from_secs(3)).await;
        table.add(rows(1, 4)).execute().await?;
        ensure(waits.await?? == 5, "one that comes meanwhile is read by a later attempt")
    })
    .await;
}

/// Check what is of no one table, in a database of its own. The principal and the role exist.
pub async fn on_catalog(url: &str, key: &str, name: &str) -> Outcome {
    let catalog = connect_catalog(url).api_key(key).execute().await?;
    let database = catalog.create_database(name).await?;
    on_lists(&database).await;
    on_databases(&catalog, name).await;
    on_functions(&database).await;
    on_secrets(&database).await;
    on_authorization(&catalog, name).await?;
    on_retries(&database, url, key, name).await;
    Ok(catalog.drop_database(DropDatabaseRequest::new(name).cascade(true)).await?)
}
