//! SQL with and without parameters, and materialized views, which are SQL statements.

use std::time::Duration;

use arrow_array::types::Int64Type;
use arrow_array::{RecordBatch, cast::AsArray, record_batch};
use futures::TryStreamExt;
use lancedb::listing::ListingOptions;
use lancedb::sql::QueryStatus;
use lancedb::{Connection, Error, Result};

use crate::{ensure, report, rows};

async fn numbers(database: &Connection, query: String, parameters: Option<RecordBatch>) -> Result<Vec<i64>> {
    let mut builder = database.execute_query_async(query);
    if let Some(parameters) = parameters {
        builder = builder.parameters(parameters);
    }
    let batches: Vec<RecordBatch> = builder.execute().await?.reader().await?.try_collect().await?;
    Ok(batches.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec()).collect())
}

async fn on_queries(database: &Connection, name: &str) {
    report("execute_query", async {
        let query = format!("SELECT id FROM {name} WHERE id < 3 ORDER BY id");
        ensure(numbers(database, query, None).await? == [0, 1, 2], "three ids")?;
        let nothing = format!("SELECT id FROM {name} WHERE id < 0");
        ensure(numbers(database, nothing, None).await?.is_empty(), "no row, with a schema")
    })
    .await;
    report("execute_query with parameters", async {
        let query = format!("SELECT id FROM {name} WHERE id >= $1 AND id < $most ORDER BY id");
        let parameters = record_batch!(("least", Int64, [7]), ("most", Int64, [9]))?;
        ensure(numbers(database, query.clone(), Some(parameters)).await? == [7, 8], "two ids")?;
        let too_few = record_batch!(("least", Int64, [7]))?;
        ensure(numbers(database, query, Some(too_few)).await.is_err(), "a placeholder without a value is refused")
    })
    .await;
    report("execute_query that fails", async {
        let missing = database.execute_query_async("SELECT * FROM no_such_table").execute().await;
        ensure(matches!(missing, Err(Error::Runtime { .. })), "refused at its submission")
    })
    .await;
    report("describe and cancel a query", async {
        let from = ["a", "b", "c", "d"].map(|alias| format!("{name} {alias}")).join(" CROSS JOIN ");
        let query = database.execute_query_async(format!("SELECT count(*) AS n FROM {from}")).execute().await?;
        ensure(database.describe_query(query.id()).await?.status == QueryStatus::Running, "it runs")?;
        query.cancel().await?;
        ensure(query.describe().await?.status == QueryStatus::Cancelled, "it is cancelled")
    })
    .await;
}

async fn on_views(database: &Connection, name: &str) {
    let view = format!("{name}_view");
    report("create_materialized_view", async {
        let created = database
            .create_materialized_view(&view, name)
            .select([("id", "id"), ("twice", "id * 2")])
            .only_if("id < 10")
            .execute()
            .await?;
        ensure(created.table().count_rows(None).await? == 10, "ten rows, once it is created")
    })
    .await;
    report("open_materialized_view", async {
        let opened = database.open_materialized_view(&view).await?;
        let query = format!("SELECT id AS \"id\", id * 2 AS \"twice\" FROM \"{name}\" WHERE id < 10");
        ensure(opened.definition_sql() == query, "its query")
    })
    .await;
    report("refresh a materialized view", async {
        database.open_table(name).execute().await?.add(rows(-5, 5)).execute().await?;
        let opened = database.open_materialized_view(&view).await?;
        let refreshed = opened.refresh().execute().await?;
        ensure(opened.table().count_rows(None).await? == 15, "fifteen rows, once it is refreshed")?;
        let again = opened.refresh().full(true).execute().await?;
        ensure(again.version > refreshed.version, "another version of all rows")
    })
    .await;
    report("list_materialized_views", async {
        let options = ListingOptions::default().page_limit(1);
        let other = format!("{name}_view_2");
        let created = database.create_materialized_view(&other, name);
        created.auto_refresh_enabled(false).auto_refresh_interval_seconds(0.5).execute().await?;
        let names: Vec<String> = database.list_materialized_views(options).try_collect().await?;
        database.drop_materialized_view(&other, &[]).await?;
        ensure(names == [view.clone(), other], "both, in pages of one")
    })
    .await;
    report("create_materialized_view that fails", async {
        let job = database
            .create_materialized_view(format!("{name}_bad"), name)
            .select([("inverse", "1 / (id - id)")])
            .execute_async()
            .await?;
        let outcome = tokio::time::timeout(Duration::from_secs(60), job.wait()).await?;
        ensure(matches!(outcome, Err(Error::JobFailed { .. })), "an error of the job")?;
        database.drop_materialized_view(format!("{name}_bad"), &[]).await?;
        Ok(())
    })
    .await;
    report("drop_materialized_view", async {
        database.drop_materialized_view(&view, &[]).await?;
        let names: Vec<String> = database.list_materialized_views(ListingOptions::default()).try_collect().await?;
        ensure(names.is_empty(), "no view")
    })
    .await;
}

/// Check queries over a table of at least 300 rows with ids from 0 on, and views of it. The table gets five rows more.
pub async fn on_sql(database: &Connection, name: &str) {
    on_queries(database, name).await;
    on_views(database, name).await;
}
