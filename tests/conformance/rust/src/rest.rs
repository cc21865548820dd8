//! A table's calls by REST: what the crate has new or otherwise since 0.40.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::types::{Int64Type, UInt64Type};
use arrow_array::{
    Array, ArrayRef, Int64Array, LargeBinaryArray, RecordBatch, RecordBatchIterator, StringArray, StructArray,
    UInt64Array, cast::AsArray,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::TryStreamExt;
use lancedb::database::CreateTableMode;
use lancedb::datafusion::prelude::col as qualified;
use lancedb::expr::{col, lit};
use lancedb::index::scalar::{BTreeIndexBuilder, BitmapIndexBuilder};
use lancedb::index::vector::IvfFlatIndexBuilder;
use lancedb::index::{Index, IndexType};
use lancedb::query::{ExecutableQuery, QueryBase, Select};
use lancedb::table::computed_columns::ComputedColumnOptions;
use lancedb::table::{
    CherryPickErrorCode, CherryPickStatus, ColumnAlteration, FieldMetadataUpdate, NewColumnTransform, Ref,
};
use lancedb::{BlobRangeRequest, Connection, Error, Table};

use crate::{Outcome, ensure, ids, report, rows};

const ENABLED: &str = "computed_column.auto_refresh_enabled";
const INTERVAL: &str = "computed_column.auto_refresh_interval_seconds";
const PRIMARY_KEY: &str = "lance-schema:unenforced-primary-key:position";

fn text(key: &str, value: &str) -> HashMap<String, String> {
    HashMap::from([(key.to_string(), value.to_string())])
}

/// Metadata at each level, and inner fields that are not nullable.
fn marked_schema() -> Schema {
    let item = Field::new("element", DataType::Float32, false).with_metadata(text("of", "items"));
    let inner = Field::new("a", DataType::Int8, false).with_metadata(text("unit", "m"));
    Schema::new(vec![
        Field::new("id", DataType::Int64, false).with_metadata(text("k", "v")),
        Field::new("l", DataType::List(Arc::new(item)), true),
        Field::new("s", DataType::Struct(vec![inner].into()), true).with_metadata(text("of", "a struct")),
        Field::new("d", DataType::Dictionary(DataType::Int32.into(), DataType::Utf8.into()), true),
        Field::new("t", DataType::Timestamp(arrow_schema::TimeUnit::Millisecond, Some("UTC".into())), true),
        Field::new("n", DataType::Decimal128(10, 2), true),
        Field::new("b", DataType::FixedSizeBinary(16), true),
    ])
    .with_metadata(text("of", "the schema"))
}

async fn open_or_create(database: &Connection, name: &str, schema: Schema) -> lancedb::Result<Table> {
    let mode = CreateTableMode::exist_ok(|request| request);
    database.create_empty_table(name, Arc::new(schema)).mode(mode).execute().await
}

async fn on_schemas(database: &Connection, name: &str) {
    let table = format!("{name}_exist_ok");
    report("create_table with exist_ok", async {
        let created = open_or_create(database, &table, marked_schema()).await?;
        ensure(created.schema().await?.as_ref() == &marked_schema(), "the schema that it was created with")?;
        let opened = open_or_create(database, &table, marked_schema()).await?;
        ensure(opened.version().await? == created.version().await?, "nothing is written")?;
        let mut nullable: Vec<Field> = marked_schema().fields().iter().map(|field| field.as_ref().clone()).collect();
        nullable[0] = nullable[0].clone().with_nullable(true);
        let mut unmarked = nullable.clone();
        unmarked[0] = marked_schema().field(0).clone().with_metadata(HashMap::new());
        let marks = marked_schema().metadata;
        for other in [
            Schema::new_with_metadata(nullable, marks.clone()),
            Schema::new_with_metadata(unmarked, marks),
            marked_schema().with_metadata(text("of", "another")),
            Schema::new(vec![Field::new("id", DataType::Int64, false)]),
        ] {
            let refused = open_or_create(database, &table, other).await;
            ensure(matches!(refused, Err(Error::Schema { .. })), "another schema is refused")?;
        }
        Ok(database.drop_table(&table, &[]).await?)
    })
    .await;
    report("open_table that was dropped since", async {
        let made = database.create_table(&table, rows(0, 1)).execute().await?;
        database.open_table(&table).execute().await?;
        database.drop_table(&table, &[]).await?;
        let gone = database.open_table(&table).execute().await;
        ensure(matches!(gone, Err(Error::TableNotFound { .. })), "it is described again, and not found")?;
        ensure(matches!(made.count_rows(None).await, Err(Error::TableNotFound { .. })), "for old handles, too")
    })
    .await;
}

fn by_vector(table: &Table, id: i64) -> lancedb::Result<lancedb::query::VectorQuery> {
    table.vector_search(vec![id as f32, id as f32 + 1.0, 0.0, 1.0])
}

async fn on_queries(table: &Table) {
    report("search_effort, nprobes and their bounds", async {
        let wait = Duration::from_secs(60);
        let index = IvfFlatIndexBuilder::default().num_partitions(4);
        table.create_index(&["vector"], Index::IvfFlat(index)).wait_timeout(wait).execute().await?;
        for effort in [0.0, 0.5, 1.0] {
            ensure(ids(by_vector(table, 7)?.search_effort(effort)?.limit(1)).await? == [7], "its own row")?;
        }
        let all = by_vector(table, 7)?.search_effort(1.0)?.nprobes(1)?.limit(300);
        ensure(ids(all).await?.len() == 300, "an effort of 1 searches all partitions, whatever nprobes")?;
        let one = ids(by_vector(table, 7)?.nprobes(1)?.limit(300)).await?.len();
        ensure(one < 300, "one partition has not all rows")?;
        let bounded = by_vector(table, 7)?.minimum_nprobes(1)?.maximum_nprobes(Some(1))?.search_effort(1.0)?.limit(300);
        ensure(ids(bounded).await?.len() == one, "an explicit maximum holds")?;
        let unbounded = by_vector(table, 7)?.minimum_nprobes(4)?.maximum_nprobes(None)?.limit(300);
        ensure(ids(unbounded).await?.len() == 300, "four partitions at least")?;
        let refused = by_vector(table, 7)?.search_effort(1.5);
        ensure(matches!(refused, Err(Error::InvalidInput { .. })), "no such effort")
    })
    .await;
    report("use_rte(false) in a query", async {
        ensure(ids(table.query().use_rte(false).only_if("id < 2")).await? == [0, 1], "as without it")
    })
    .await;
    report("select expressions in the caller's order", async {
        let columns = Select::dynamic(&[("z", "id"), ("a", "id * 2"), ("m", "text")]);
        let query = table.query().only_if("id = 3").select(columns);
        let batches: Vec<RecordBatch> = query.execute().await?.try_collect().await?;
        let names: Vec<String> = batches[0].schema().fields().iter().map(|field| field.name().clone()).collect();
        ensure(names == ["z", "a", "m"], "three columns in order")?;
        ensure(batches[0]["a"].as_primitive::<Int64Type>().value(0) == 6, "and values")
    })
    .await;
    report("filter by an expression", async {
        let filter = col("id").lt(lit(2_i64)).or(col("text").eq(lit("word7 fox")));
        ensure(ids(table.query().only_if_expr(filter)).await? == [0, 1, 7], "three ids")
    })
    .await;
    report("take_row_ids and take_offsets", async {
        let found = table.query().only_if("id IN (4, 9)").with_row_id();
        let batches: Vec<RecordBatch> = found.execute().await?.try_collect().await?;
        let row_ids = batches.iter().flat_map(|batch| batch["_rowid"].as_primitive::<UInt64Type>().values().to_vec());
        ensure(ids(table.take_row_ids(row_ids.collect())).await? == [4, 9], "by row ids")?;
        ensure(ids(table.take_offsets(vec![5, 2])).await? == [2, 5], "by offsets")
    })
    .await;
}

async fn merge(table: &Table, batch: RecordBatch, condition: &str) -> lancedb::Result<(u64, u64, u64)> {
    let schema = batch.schema();
    let mut merge = table.merge_insert(&["id"]);
    merge.when_matched_update_all(Some(condition.into())).when_not_matched_insert_all();
    merge.timeout(Duration::from_secs(60)).use_index(false).use_rte(false);
    let result = merge.execute(Box::new(RecordBatchIterator::new([Ok(batch)], schema))).await?;
    Ok((result.num_updated_rows, result.num_inserted_rows, result.version))
}

async fn on_changes(table: &Table) {
    report("merge_insert with a condition, a timeout and use_rte(false)", async {
        let before = table.version().await?;
        let (updated, inserted, version) = merge(table, rows(298, 4), "source.id < 299").await?;
        ensure((updated, inserted) == (1, 2), "one row updated, two inserted")?;
        ensure(version > before && version == table.version().await?, "a version")?;
        let mut by_expression = table.merge_insert(&["id"]);
        by_expression.when_matched_update_all_expr(qualified("target.id").gt(lit(300_i64)));
        let batch = rows(299, 3);
        let schema = batch.schema();
        let result = by_expression.execute(Box::new(RecordBatchIterator::new([Ok(batch)], schema))).await?;
        ensure((result.num_updated_rows, result.num_inserted_rows) == (1, 0), "by an expression, one row")
    })
    .await;
    report("merge_insert of no rows", async {
        let mut nothing = table.merge_insert(&["id"]);
        nothing.when_matched_update_all(None).when_not_matched_insert_all();
        let result = nothing.execute(Box::new(RecordBatchIterator::new([], rows(0, 1).schema()))).await?;
        ensure((result.num_updated_rows, result.num_inserted_rows) == (0, 0), "none")?;
        let mut replaced = table.merge_insert(&["id"]);
        replaced.when_not_matched_by_source_delete(Some("id >= 300".into()));
        let batch = rows(300, 1);
        let schema = batch.schema();
        let result = replaced.execute(Box::new(RecordBatchIterator::new([Ok(batch)], schema))).await?;
        ensure(result.num_deleted_rows == 1, "one that the source has not is deleted")
    })
    .await;
    report("update and delete say how many", async {
        let updated = table.update().only_if("id >= 298").column("text", "'late'").execute().await?;
        ensure(updated.rows_updated == 3 && updated.version == table.version().await?, "three rows")?;
        let deleted = table.delete("text = 'late' AND id = 300").await?;
        ensure(deleted.num_deleted_rows == 1, "one row")?;
        ensure(table.delete(&col("id").eq(lit(299_i64))).await?.num_deleted_rows == 1, "by an expression")
    })
    .await;
    report("stats", async {
        let stats = table.stats().await?;
        ensure(stats.num_rows == 299 && stats.total_bytes > 0, "299 rows")?;
        ensure(stats.num_deleted_rows.is_some_and(|deleted| deleted > 0), "deleted rows lie in its files")?;
        ensure(stats.num_indices == 1 && stats.fragment_stats.num_fragments > 0, "an index, and fragments")
    })
    .await;
}

async fn on_metadata(database: &Connection, name: &str) -> Outcome {
    let table = database.create_table(format!("{name}_meta"), rows(0, 3)).execute().await?;
    report("update_field_metadata", async {
        let set = FieldMetadataUpdate::new("text").set("lancedb:description", "words").set("other", "1");
        let result = table.update_field_metadata(&[set]).await?;
        ensure(result.version == table.version().await?, "a version")?;
        let removed = FieldMetadataUpdate::new("text").remove("other");
        table.update_field_metadata(&[removed]).await?;
        let schema = table.schema().await?;
        ensure(schema.field_with_name("text")?.metadata() == &text("lancedb:description", "words"), "one key stays")?;
        let missing = table.update_field_metadata(&[FieldMetadataUpdate::new("nope").set("a", "b")]).await;
        ensure(is_http(&missing, 400), "no such field: 400")
    })
    .await;
    report("set_unenforced_primary_key", async {
        ensure(is_http(&table.set_unenforced_primary_key(["id"]).await, 400), "a column with nulls is no key")?;
        let strict = Schema::new(vec![Field::new("id", DataType::Int64, false), Field::new("v", DataType::Utf8, true)]);
        let name = format!("{name}_keyed");
        let table = database.create_empty_table(&name, Arc::new(strict)).execute().await?;
        table.set_unenforced_primary_key(["id"]).await?;
        let schema = table.schema().await?;
        ensure(schema.field_with_name("id")?.metadata().get(PRIMARY_KEY).is_some_and(|at| at == "1"), "the key")?;
        ensure(table.set_unenforced_primary_key(["v"]).await.is_err(), "one key")?;
        Ok(database.drop_table(&name, &[]).await?)
    })
    .await;
    report("alter_columns", async {
        table.alter_columns(&[ColumnAlteration::new("text".into()).rename("words".into())]).await?;
        ensure(table.schema().await?.field_with_name("words").is_ok(), "another name")?;
        table.alter_columns(&[ColumnAlteration::new("words".into()).cast_to(DataType::LargeUtf8)]).await?;
        let kind = table.schema().await?.field_with_name("words")?.data_type().clone();
        ensure(kind == DataType::LargeUtf8, "another type")?;
        let nothing = table.alter_columns(&[ColumnAlteration::new("words".into())]).await;
        ensure(matches!(nothing, Err(Error::InvalidInput { .. })), "nothing to alter")
    })
    .await;
    Ok(database.drop_table(format!("{name}_meta"), &[]).await?)
}

async fn on_computed_columns(database: &Connection, name: &str) -> Outcome {
    let table = database.create_table(format!("{name}_computed"), rows(0, 5)).execute().await?;
    report("add_columns with auto refresh", async {
        let options = ComputedColumnOptions { auto_refresh_enabled: true, auto_refresh_interval_seconds: Some(7) };
        table.add_columns().computed("twice", "id * 2").computed_options(options).execute().await?;
        let options = ComputedColumnOptions { auto_refresh_enabled: false, auto_refresh_interval_seconds: None };
        table.add_columns().computed("thrice", "id * 3").computed_options(options).execute().await?;
        let schema = table.schema().await?;
        let twice = schema.field_with_name("twice")?.metadata();
        ensure(twice.get(ENABLED).is_some_and(|text| text == "true"), "permitted")?;
        ensure(twice.get(INTERVAL).is_some_and(|text| text == "7"), "its interval")?;
        let thrice = schema.field_with_name("thrice")?.metadata();
        ensure(thrice.get(ENABLED).is_some_and(|text| text == "false"), "not permitted")?;
        ensure(thrice.get(INTERVAL).is_none(), "no interval")?;
        let plain = NewColumnTransform::SqlExpressions(vec![("plain".into(), "id + 1".into())]);
        table.add_columns().transform(plain).execute().await?;
        ensure(!table.schema().await?.field_with_name("plain")?.metadata().contains_key(ENABLED), "no such mark")
    })
    .await;
    report("refresh_column", async {
        let result = table.refresh_column_async("thrice").await?.wait().await?;
        ensure(result.rows_assigned == 5 && result.rows_failed == 0, "five rows")?;
        ensure(table.count_rows(Some("thrice = id * 3".into())).await? == 5, "their values")?;
        let missing = table.refresh_column_async("nope").await.err().ok_or("no error")?;
        ensure(!matches!(missing, Error::TableNotFound { .. }), "a missing column is no missing table")?;
        let plain = table.refresh_column_async("text").await;
        ensure(plain.is_err(), "an ordinary column is refused")
    })
    .await;
    Ok(database.drop_table(format!("{name}_computed"), &[]).await?)
}

fn blob_rows(values: &[Option<&[u8]>]) -> RecordBatch {
    let field = lancedb::blob("image", true);
    let DataType::Struct(fields) = field.data_type().clone() else { unreachable!("a blob is a struct") };
    let count = values.len();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(LargeBinaryArray::from_iter(values.iter().copied())),
        Arc::new(StringArray::new_null(count)),
        Arc::new(UInt64Array::new_null(count)),
        Arc::new(UInt64Array::new_null(count)),
    ];
    let validity = values.iter().map(Option::is_some).collect::<Vec<bool>>().into();
    let images = StructArray::new(fields, columns, Some(validity));
    let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true), field]));
    let numbers = Int64Array::from_iter_values(0..count as i64);
    RecordBatch::try_new(schema, vec![Arc::new(numbers), Arc::new(images)]).expect("the columns fit the schema")
}

async fn on_blobs(database: &Connection, name: &str) -> Outcome {
    let large = vec![7_u8; 300_000];
    let values: [Option<&[u8]>; 4] = [Some(b"inline"), None, Some(b""), Some(&large)];
    let table = database.create_table(format!("{name}_blobs"), blob_rows(&values)).execute().await?;
    let found: Vec<RecordBatch> =
        table.query().select(Select::columns(&["id"])).with_row_id().execute().await?.try_collect().await?;
    let mut row_ids = vec![0_u64; 4];
    for batch in &found {
        for (id, row) in batch["id"].as_primitive::<Int64Type>().iter().zip(batch["_rowid"].as_primitive::<UInt64Type>())
        {
            row_ids[id.ok_or("no id")? as usize] = row.ok_or("no row id")?;
        }
    }
    report("fetch_blobs", async {
        ensure(table.blob_columns().await? == ["image"], "one column of blobs")?;
        let fetched = table.fetch_blobs("image", &[row_ids[3], row_ids[1], row_ids[0]]).await?;
        ensure(fetched.value(0) == large && fetched.is_null(1) && fetched.value(2) == b"inline", "in the order asked")
    })
    .await;
    report("fetch_blob_files", async {
        let files = table.fetch_blob_files("image", &row_ids).await?;
        ensure(files[1].is_none(), "null")?;
        let sizes: Vec<u64> = files.iter().flatten().map(|file| file.size()).collect();
        ensure(sizes == [6, 0, 300_000], "their sizes, by the descriptors of a query")?;
        let file = files[3].as_ref().ok_or("no file")?;
        ensure(file.read_range(10..20).await?.as_ref() == &large[10..20], "a range")?;
        file.seek(299_990).await?;
        ensure(file.read_up_to(4).await?.len() == 4 && file.read().await?.len() == 6, "from the cursor on")?;
        ensure(table.fetch_blob_files("image", &[1 << 40]).await.is_err(), "no such row")
    })
    .await;
    report("fetch_blob_ranges", async {
        let ranges = [(row_ids[0], 2, 3), (row_ids[1], 0, 1), (row_ids[3], 299_998, 2), (row_ids[0], 1, 0)];
        let ranges = ranges.map(|(row, offset, length)| BlobRangeRequest::new(row, offset, length));
        let fetched = table.fetch_blob_ranges("image", ranges).await?;
        ensure(fetched.value(0) == b"lin" && fetched.is_null(1), "three bytes, and null")?;
        ensure(fetched.value(2) == [7, 7] && fetched.value(3).is_empty(), "two bytes, and none")
    })
    .await;
    report("add blobs", async {
        table.add(blob_rows(&[Some(b"added")])).execute().await?;
        ensure(table.count_rows(None).await? == 5, "five rows")
    })
    .await;
    Ok(database.drop_table(format!("{name}_blobs"), &[]).await?)
}

async fn on_branches(database: &Connection, name: &str) -> Outcome {
    let table = database.create_table(format!("{name}_branches"), rows(0, 3)).execute().await?;
    report("branches", async {
        let branch = table.create_branch("dev", Ref::Version(None, None)).await?;
        ensure(branch.current_branch().as_deref() == Some("dev"), "its handle")?;
        branch.add(rows(3, 2)).execute().await?;
        ensure((branch.count_rows(None).await?, table.count_rows(None).await?) == (5, 3), "rows of their own")?;
        let listed = table.list_branches().await?;
        ensure(listed.len() == 1 && listed["dev"].parent_version == 1, "listed")?;
        ensure(table.create_branch("dev", Ref::Version(None, None)).await.is_err(), "a name is one branch's")?;
        let pinned = table.checkout_branch("dev", Some(1)).await?;
        ensure(pinned.count_rows(None).await? == 3, "a version of it")?;
        ensure(pinned.delete("true").await.is_err(), "which is only read")
    })
    .await;
    report("diff_branch and cherry_pick", async {
        let diff = table.diff_branch("dev").await?;
        ensure((diff.row_count_main, diff.row_count_branch) == (3, 5), "rows")?;
        let picked = table.cherry_pick("dev", true).await?;
        let codes: Vec<CherryPickErrorCode> = picked.diff.errors.into_iter().map(|error| error.code).collect();
        ensure(picked.status == CherryPickStatus::Failed && !codes.is_empty(), "rows are not picked, with a reason")?;
        ensure(!codes.contains(&CherryPickErrorCode::Unknown), "which the client knows")?;
        let columns = table.create_branch("columns", Ref::Version(None, None)).await?;
        let double = NewColumnTransform::SqlExpressions(vec![("double".into(), "id * 2".into())]);
        columns.add_columns().transform(double).execute().await?;
        let picked = table.cherry_pick("columns", false).await?;
        ensure(picked.status == CherryPickStatus::CherryPicked, "a column is")?;
        ensure(picked.preview.promoted_columns == ["double"] && picked.main_version_after.is_some(), "this one")?;
        table.checkout_latest().await?;
        ensure(table.count_rows(Some("double = id * 2".into())).await? == 3, "with its values")
    })
    .await;
    report("tags, checkout_tag and restore", async {
        let mut tags = table.tags().await?;
        tags.create("first", 1).await?;
        ensure(tags.create("first", 1).await.is_err(), "a name is one tag's")?;
        tags.update("first", 2).await?;
        ensure(tags.list().await?["first"].version == 2, "moved")?;
        tags.update("first", 1).await?;
        ensure(table.restore().await.is_err(), "only a checked-out version is restored")?;
        table.checkout_tag("first").await?;
        ensure(table.schema().await?.field_with_name("double").is_err(), "as it was")?;
        table.restore().await?;
        ensure(table.schema().await?.field_with_name("double").is_err(), "and is again")?;
        tags.delete("first").await?;
        ensure(tags.delete("first").await.is_err(), "no such tag")
    })
    .await;
    report("delete_branch", async {
        table.delete_branch("dev").await?;
        table.delete_branch("columns").await?;
        ensure(table.list_branches().await?.is_empty(), "none")?;
        ensure(table.checkout_branch("dev", None).await.is_err(), "no such branch")
    })
    .await;
    Ok(database.drop_table(format!("{name}_branches"), &[]).await?)
}

async fn on_indexes(table: &Table) {
    report("index statistics", async {
        let wait = Duration::from_secs(60);
        let bitmap = Index::Bitmap(BitmapIndexBuilder::default());
        table.create_index(&["id"], Index::BTree(BTreeIndexBuilder::default())).wait_timeout(wait).execute().await?;
        table.create_index(&["text"], bitmap).name("words".into()).wait_timeout(wait).execute().await?;
        table.add(rows(1000, 2)).execute().await?;
        let rows_now = table.count_rows(None).await?;
        let listed = table.list_indices().await?;
        let kinds: HashMap<&str, IndexType> =
            listed.iter().map(|index| (index.name.as_str(), index.index_type.clone())).collect();
        ensure(kinds["id_idx"] == IndexType::BTree && kinds["words"] == IndexType::Bitmap, "two scalar ones")?;
        ensure(kinds["vector_idx"] == IndexType::IvfFlat, "and one of vectors")?;
        let of_words = listed.iter().find(|index| index.name == "words").ok_or("not listed")?;
        ensure(of_words.columns == ["text"] && of_words.num_unindexed_rows == Some(2), "two rows are in none")?;
        let stats = table.index_stats("words").await?.ok_or("no statistics")?;
        ensure((stats.num_indexed_rows, stats.num_unindexed_rows) == (rows_now - 2, 2), "counted, too")?;
        ensure(table.index_stats("nope").await?.is_none(), "none of a missing one")?;
        table.prewarm_index("words").await?;
        ensure(table.prewarm_index("nope").await.is_err(), "nothing to load")
    })
    .await;
}

/// Whether a call was answered with a status that the crate knows no other meaning of.
pub fn is_http<T>(outcome: &lancedb::Result<T>, status: u16) -> bool {
    matches!(outcome, Err(Error::Http { status_code: Some(code), .. }) if code.as_u16() == status)
}

async fn on_errors(database: &Connection, table: &Table) {
    report("errors as the crate classifies them", async {
        let missing = database.open_table("no_such_table").execute().await;
        ensure(matches!(missing, Err(Error::TableNotFound { .. })), "a missing table")?;
        ensure(is_http(&table.count_rows(Some("nope = 1".into())).await, 400), "a filter of no column: 400")?;
        ensure(is_http(&table.drop_columns(&["nope"]).await, 400), "a missing column: 400")?;
        let job = database.open_job("00000000-0000-0000-0000-000000000000").await;
        ensure(job.is_err(), "a missing job")?;
        let index = table.drop_index("nope").await;
        ensure(matches!(index, Err(Error::IndexNotFound { .. })), "a missing index")
    })
    .await;
}

/// Check the calls on tables of their own, whose names begin with `name`.
pub async fn on_rest(database: &Connection, name: &str) -> Outcome {
    on_schemas(database, name).await;
    let table = database.create_table(name, rows(0, 300)).execute().await?;
    on_queries(&table).await;
    on_changes(&table).await;
    on_indexes(&table).await;
    on_errors(database, &table).await;
    database.drop_table(name, &[]).await?;
    on_metadata(database, name).await?;
    on_computed_columns(database, name).await?;
    on_blobs(database, name).await?;
    on_branches(database, name).await
}
