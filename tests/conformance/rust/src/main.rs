//! Call a server through the stock `lancedb` crate; print one JSON object for each call: {"call", "error"}.
//!
//!     cargo run --quiet -- URL KEY

mod catalog;
mod rest;
mod rte;
mod sql;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arrow_array::types::{Float32Type, Int64Type};
use arrow_array::{cast::AsArray, FixedSizeListArray, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::TryStreamExt;
use lancedb::index::scalar::{BTreeIndexBuilder, FtsIndexBuilder};
use lancedb::index::vector::IvfPqIndexBuilder;
use lancedb::index::{Index, scalar::FullTextSearchQuery};
use lancedb::query::{ExecutableQuery, QueryBase, Select};
use lancedb::table::NewColumnTransform;
use lancedb::{Connection, Table, connect};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn schema() -> SchemaRef {
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, true),
        Field::new("text", DataType::Utf8, true),
        Field::new("vector", DataType::FixedSizeList(item, 4), true),
    ]))
}

fn rows(first: i64, count: i64) -> RecordBatch {
    let ids = first..first + count;
    let texts = StringArray::from_iter_values(ids.clone().map(|id| format!("word{id} fox")));
    let vectors = ids.clone().map(|id| Some(vec![Some(id as f32), Some(id as f32 + 1.0), Some(0.0), Some(1.0)]));
    let vectors = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(vectors, 4);
    let columns: Vec<arrow_array::ArrayRef> =
        vec![Arc::new(Int64Array::from_iter_values(ids)), Arc::new(texts), Arc::new(vectors)];
    RecordBatch::try_new(schema(), columns).expect("the columns fit the schema")
}

async fn ids(query: impl ExecutableQuery) -> Result<Vec<i64>, lancedb::Error> {
    let batches: Vec<RecordBatch> = query.execute().await?.try_collect().await?;
    let mut ids: Vec<i64> = batches
        .iter()
        .flat_map(|batch| batch["id"].as_primitive::<Int64Type>().values().to_vec())
        .collect();
    ids.sort();
    Ok(ids)
}

fn ensure(holds: bool, what: &str) -> Outcome {
    if holds { Ok(()) } else { Err(what.into()) }
}

async fn report(call: &str, outcome: impl Future<Output = Outcome>) {
    let error = outcome.await.err().map(|error| error.to_string());
    println!("{}", serde_json::json!({"call": call, "error": error}));
}

async fn on_rows(table: &Table) {
    report("add", async {
        table.add(rows(300, 10)).execute().await?;
        ensure(table.count_rows(None).await? == 310, "310 rows")
    })
    .await;
    report("count_rows", async { ensure(table.count_rows(Some("id < 10".into())).await? == 10, "10 rows") }).await;
    report("update", async {
        table.update().only_if("id = 0").column("text", "'changed'").execute().await?;
        ensure(table.count_rows(Some("text = 'changed'".into())).await? == 1, "1 row")
    })
    .await;
    report("delete", async {
        table.delete("id >= 305").await?;
        ensure(table.count_rows(None).await? == 305, "305 rows")
    })
    .await;
    report("merge_insert", async {
        let mut merge = table.merge_insert(&["id"]);
        merge.when_matched_update_all(None).when_not_matched_insert_all();
        let reader = arrow_array::RecordBatchIterator::new(vec![Ok(rows(300, 10))], schema());
        let result = merge.execute(Box::new(reader)).await?;
        ensure((result.num_updated_rows, result.num_inserted_rows) == (5, 5), "5 and 5 rows")
    })
    .await;
    report("query", async {
        let query = table.query().only_if("id < 5").select(Select::columns(&["id"])).limit(9);
        ensure(ids(query).await? == [0, 1, 2, 3, 4], "five ids")
    })
    .await;
    report("vector_search", async {
        let query = table.vector_search(vec![5.0, 6.0, 0.0, 1.0])?.limit(1);
        ensure(ids(query).await? == [5], "its own row")
    })
    .await;
    report("explain_plan", async {
        let plan = table.vector_search(vec![5.0, 6.0, 0.0, 1.0])?.limit(1).explain_plan(true).await?;
        ensure(plan.contains("KNN"), "a plan")
    })
    .await;
}

async fn on_indexes(table: &Table) {
    let wait = Duration::from_secs(60);
    report("create_index btree", async {
        table.create_index(&["id"], Index::BTree(BTreeIndexBuilder::default())).execute().await?;
        table.wait_for_index(&["id_idx"], wait).await?;
        let stats = table.index_stats("id_idx").await?.ok_or("no statistics")?;
        ensure(stats.num_indexed_rows == 310, "310 rows indexed")
    })
    .await;
    report("create_index fts", async {
        table.create_index(&["text"], Index::FTS(FtsIndexBuilder::default())).execute().await?;
        table.wait_for_index(&["text_idx"], wait).await?;
        let query = table.query().full_text_search(FullTextSearchQuery::new("word8".into())).limit(3);
        ensure(ids(query).await? == [8], "the row with the word")
    })
    .await;
    report("create_index ivf_pq", async {
        let index = IvfPqIndexBuilder::default().num_partitions(2).num_sub_vectors(2);
        table.create_index(&["vector"], Index::IvfPq(index)).execute().await?;
        table.wait_for_index(&["vector_idx"], wait).await?;
        ensure(table.list_indices().await?.len() == 3, "three indexes")
    })
    .await;
    report("drop_index", async {
        table.drop_index("vector_idx").await?;
        ensure(table.list_indices().await?.len() == 2, "two indexes")
    })
    .await;
}

async fn on_versions(table: &Table) {
    report("add_columns", async {
        let double = NewColumnTransform::SqlExpressions(vec![("double".into(), "id * 2".into())]);
        table.add_columns().transform(double).execute().await?;
        ensure(table.count_rows(Some("double = 20".into())).await? == 1, "1 row")
    })
    .await;
    report("drop_columns", async {
        table.drop_columns(&["double"]).await?;
        ensure(table.schema().await?.fields().len() == 3, "three columns")
    })
    .await;
    report("checkout", async {
        table.checkout(1).await?;
        let first = table.count_rows(None).await?;
        table.checkout_latest().await?;
        ensure(first == 300 && table.count_rows(None).await? == 310, "300 and 310 rows")
    })
    .await;
    report("list_versions", async {
        ensure(table.list_versions().await?.len() as u64 == table.version().await?, "all versions")
    })
    .await;
    report("tags", async {
        let mut tags = table.tags().await?;
        tags.create("first", 1).await?;
        ensure(tags.get_version("first").await? == 1, "version 1")?;
        tags.delete("first").await?;
        ensure(tags.list().await?.is_empty(), "no tag")
    })
    .await;
}

async fn on_database(database: &Connection, name: &str) {
    report("table_names", async {
        ensure(database.table_names().limit(1000).execute().await?.contains(&name.to_string()), "the table")
    })
    .await;
    report("open_table", async {
        ensure(database.open_table(name).execute().await?.count_rows(None).await? == 310, "310 rows")?;
        ensure(database.open_table("no_such_table").execute().await.is_err(), "no other table")
    })
    .await;
    report("create_table again", async {
        let again = database.create_table(name, rows(0, 1)).execute().await;
        ensure(matches!(again, Err(lancedb::Error::TableAlreadyExists { .. })), "already exists")
    })
    .await;
    report("drop_table", async {
        database.drop_table(name, &[]).await?;
        ensure(!database.table_names().limit(1000).execute().await?.contains(&name.to_string()), "no table")
    })
    .await;
}

#[tokio::main]
async fn main() -> Outcome {
    let [url, key]: [String; 2] =
        std::env::args().skip(1).collect::<Vec<_>>().try_into().map_err(|_| "usage: URL KEY")?;
    let database = connect("db://main").api_key(&key).host_override(&url).region("us-east-1").execute().await?;
    let name = format!("rust_{}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis());
    let table = database.create_table(&name, rows(0, 300)).execute().await?;
    report("create_table", async { ensure(table.count_rows(None).await? == 300, "300 rows") }).await;
    on_rows(&table).await;
    on_indexes(&table).await;
    on_versions(&table).await;
    on_database(&database, &name).await;
    let queried = format!("{name}_sql");
    database.create_table(&queried, rows(0, 300)).execute().await?;
    sql::on_sql(&database, &queried).await;
    database.drop_table(&queried, &[]).await?;
    rte::on_rte(&database, &format!("{name}_rte")).await?;
    rest::on_rest(&database, &format!("{name}_rest")).await?;
    catalog::on_catalog(&url, &key, &format!("{name}_catalog")).await
}
