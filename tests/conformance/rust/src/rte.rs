//! The real-time engine: its specification, and merges and queries that ask for it.

use std::sync::Arc;

use arrow_array::{Int64Array, RecordBatch, RecordBatchIterator};
use arrow_schema::{DataType, Field, Schema};
use lancedb::query::{ExecutableQuery, QueryBase};
use lancedb::table::RTEWriteSpec;
use lancedb::{Connection, Table};

use crate::{ensure, ids, report};

fn keys(ids: Vec<i64>) -> RecordBatch {
    let schema = Schema::new(vec![Field::new("id", DataType::Int64, false)]);
    RecordBatch::try_new(Arc::new(schema), vec![Arc::new(Int64Array::from(ids))]).expect("the column fits the schema")
}

pub async fn on_rte(database: &Connection, name: &str) -> lancedb::Result<()> {
    let table: Table = database.create_table(name, keys(vec![1, 2])).execute().await?;
    report("use_rte without a specification", async {
        ensure(table.get_rte_spec().await?.is_none() && table.get_rte_stats(true).await?.is_none(), "none of it")?;
        ensure(table.query().use_rte(true).execute().await.is_err(), "a refusal")
    })
    .await;
    report("enable_rte", async {
        table.set_unenforced_primary_key(["id"]).await?;
        table.enable_rte(RTEWriteSpec::bucket("id", 4)).await?;
        let is_bucket = matches!(table.get_rte_spec().await?, Some(RTEWriteSpec::Bucket { num_buckets: 4, .. }));
        ensure(is_bucket, "4 buckets")?;
        ensure(table.get_rte_stats(true).await?.is_some_and(|stats| stats.table_shards.is_empty()), "no shards")
    })
    .await;
    report("merge_insert and query with use_rte", async {
        let batch = keys(vec![2, 3]);
        let schema = batch.schema();
        let mut merge = table.merge_insert(&["id"]);
        merge.when_matched_update_all(None).when_not_matched_insert_all().use_rte(true);
        let result = merge.execute(Box::new(RecordBatchIterator::new([Ok(batch)], schema))).await?;
        ensure((result.num_updated_rows, result.num_inserted_rows) == (1, 1), "1 and 1 rows")?;
        ensure(ids(table.query().use_rte(true)).await? == [1, 2, 3], "three rows")
    })
    .await;
    report("flush_rte, compact_rte, checkpoint_rte", async {
        table.flush_rte().await?;
        table.compact_rte().await?;
        table.checkpoint_rte().await?;
        table.close_rte_writers().await?;
        Ok(())
    })
    .await;
    report("disable_rte", async {
        table.disable_rte().await?;
        ensure(table.get_rte_spec().await?.is_none(), "no specification")
    })
    .await;
    database.drop_table(name, &[]).await
}
