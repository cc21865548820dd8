// Call a server through the stock client of npm; print one JSON object for each call: {call, error}.
//
//     node calls.js URL KEY

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const require = createRequire(import.meta.url); // the client is CommonJS, and knows the classes of that apache-arrow alone
const lancedb = require("@lancedb/lancedb");
const { Field, FixedSizeList, Float32, Int64, Schema, Utf8 } = require("apache-arrow");

const [url, apiKey] = process.argv.slice(2);
const database = await lancedb.connect("db://main", { apiKey, hostOverride: url });
const name = `typescript_${Date.now()}`;
const vectorType = new FixedSizeList(4, new Field("item", new Float32(), true));
const schema = new Schema([
  new Field("id", new Int64(), true),
  new Field("text", new Utf8(), true),
  new Field("vector", vectorType, true),
]);
const row = (id) => ({ id: BigInt(id), text: `word${id} fox`, vector: [id, id + 1, 0, 1] });
const rows = (first, count) => Array.from({ length: count }, (_, index) => row(first + index));
const ids = (found) => found.map((each) => Number(each.id)).sort((a, b) => a - b);
let table;

const calls = {
  async createTable() {
    table = await database.createTable(name, rows(0, 300), { schema });
    assert.equal(await table.countRows(), 300);
  },
  async createTableAgain() {
    await assert.rejects(database.createTable(name, rows(0, 1), { schema }), /already exists/);
  },
  async createTableExistOk() {
    await database.createTable(name, rows(0, 1), { schema, existOk: true });
    assert.equal(await table.countRows(), 300);
  },
  async createTableOverwrite() {
    const other = await database.createTable(`${name}_other`, rows(0, 9), { schema });
    const again = await database.createTable(`${name}_other`, rows(0, 3), { schema, mode: "overwrite" });
    assert.equal(await again.countRows(), 3);
    assert.equal(other.name, again.name);
  },
  async createEmptyTable() {
    const empty = await database.createEmptyTable(`${name}_empty`, schema);
    assert.equal(await empty.countRows(), 0);
  },
  async tableNames() {
    assert.ok((await database.tableNames({ limit: 1000 })).includes(name));
  },
  async listTables() {
    assert.ok((await database.listTables({ limit: 1000 })).tables.includes(name));
  },
  async openTable() {
    assert.equal(await (await database.openTable(name)).countRows(), 300);
    await assert.rejects(database.openTable("no_such_table"), /not found/);
  },
  async schema() {
    assert.deepEqual((await table.schema()).fields.map((field) => field.name), ["id", "text", "vector"]);
  },
  async add() {
    await table.add(rows(300, 20));
    assert.equal(await table.countRows(), 320);
  },
  async addOverwrite() {
    const other = await database.openTable(`${name}_other`);
    await other.add(rows(0, 5), { mode: "overwrite" });
    assert.equal(await other.countRows(), 5);
  },
  async countRows() {
    assert.equal(await table.countRows("id < 10"), 10);
    await assert.rejects(table.countRows("no_column = 1"));
  },
  async update() {
    await table.update({ where: "id = 0", values: { text: "changed" } });
    assert.equal(await table.countRows("text = 'changed'"), 1);
  },
  async updateSql() {
    await table.update({ where: "id = 1", valuesSql: { text: "upper(text)" } });
    assert.equal(await table.countRows("text = 'WORD1 FOX'"), 1);
  },
  async delete() {
    await table.delete("id >= 310");
    assert.equal(await table.countRows(), 310);
  },
  async mergeInsert() {
    const result = await table.mergeInsert("id").whenMatchedUpdateAll().whenNotMatchedInsertAll().execute(rows(305, 10));
    assert.deepEqual([Number(result.numUpdatedRows), Number(result.numInsertedRows)], [5, 5]);
  },
  async query() {
    const found = await table.query().where("id < 5").select(["id"]).limit(9).toArray();
    assert.deepEqual(ids(found), [0, 1, 2, 3, 4]);
  },
  async queryOffset() {
    assert.equal((await table.query().where("id < 5").offset(3).limit(9).toArray()).length, 2);
  },
  async queryOrderBy() {
    const found = await table.query().where("id < 5").orderBy({ columnName: "id", ascending: false }).limit(2).toArray();
    assert.deepEqual(found.map((each) => Number(each.id)), [4, 3]);
  },
  async takeOffsets() {
    assert.deepEqual((await table.takeOffsets([1, 2]).select(["id"]).toArray()).length, 2);
  },
  async takeRowIds() {
    const [first] = await table.query().where("id = 7").withRowId().limit(1).toArray();
    assert.deepEqual(ids(await table.takeRowIds([first._rowid]).toArray()), [7]);
  },
  async toArrow() {
    assert.equal((await table.toArrow()).numRows, 315);
  },
  async vectorSearch() {
    const found = await table.vectorSearch([5, 6, 0, 1]).limit(1).toArray();
    assert.deepEqual(ids(found), [5]);
  },
  async vectorSearchPrefilter() {
    const found = await table.vectorSearch([5, 6, 0, 1]).where("id > 100").distanceType("cosine").limit(3).toArray();
    assert.ok(found.length === 3 && ids(found)[0] > 100);
  },
  async search() {
    assert.equal((await table.search([5, 6, 0, 1]).limit(2).toArray()).length, 2);
  },
  async explainPlan() {
    assert.match(await table.vectorSearch([5, 6, 0, 1]).limit(1).explainPlan(), /KNN/i);
  },
  async analyzePlan() {
    assert.match(await table.query().where("id < 5").limit(1).analyzePlan(), /metrics/i);
  },
  async createScalarIndex() {
    await table.createIndex("id", { config: lancedb.Index.btree() });
    await table.waitForIndex(["id_idx"], 60);
    assert.deepEqual((await table.listIndices()).map((index) => index.name), ["id_idx"]);
  },
  async createFtsIndex() {
    await table.createIndex("text", { config: lancedb.Index.fts() });
    await table.waitForIndex(["text_idx"], 60);
    const found = await table.search("word8", "fts", "text").limit(3).toArray();
    assert.deepEqual(ids(found), [8]);
  },
  async createVectorIndex() {
    await table.createIndex("vector", { config: lancedb.Index.ivfPq({ numPartitions: 2, numSubVectors: 2 }) });
    await table.waitForIndex(["vector_idx"], 60);
    assert.equal((await table.vectorSearch([5, 6, 0, 1]).refineFactor(9).limit(1).toArray()).length, 1);
  },
  async indexStats() {
    const stats = await table.indexStats("id_idx");
    assert.deepEqual([stats.numIndexedRows, stats.indexType], [315, "BTREE"]);
    assert.equal(await table.indexStats("none"), undefined);
  },
  async tokenize() {
    const tokens = await table.tokenize("Words of a Fox", { indexName: "text_idx" });
    assert.ok(tokens.some((token) => token.text === "fox"));
  },
  async prewarmIndex() {
    await table.prewarmIndex("id_idx");
  },
  async prewarmData() {
    await table.prewarmData(["id"]);
  },
  async optimize() {
    await assert.rejects(table.optimize(), /not supported/i); // the client's own refusal
  },
  async dropIndex() {
    await table.dropIndex("vector_idx");
    assert.ok(!(await table.listIndices()).some((index) => index.name === "vector_idx"));
  },
  async addColumns() {
    await table.addColumns([{ name: "double", valueSql: "id * 2" }]);
    assert.equal(await table.countRows("double = 20"), 1);
  },
  async addEmptyColumns() {
    const note = new Field("note", new Utf8(), true);
    await assert.rejects(table.addColumns(note), /Only SQL/); // the client's own refusal
  },
  async alterColumns() {
    await table.alterColumns([{ path: "double", rename: "twice" }]);
    assert.equal(await table.countRows("twice = 20"), 1);
  },
  async updateFieldMetadata() {
    await table.updateFieldMetadata([{ path: "twice", metadata: { unit: "none" } }]);
    const field = (await table.schema()).fields.find((each) => each.name === "twice");
    assert.equal(field.metadata.get("unit"), "none");
  },
  async dropColumns() {
    await table.dropColumns(["twice"]);
    assert.equal((await table.schema()).fields.length, 3);
  },
  async versions() {
    const latest = await table.version();
    assert.equal((await table.listVersions()).length, latest);
  },
  async checkout() {
    await table.checkout(1);
    assert.equal(await table.countRows(), 300);
    await table.checkoutLatest();
    assert.equal(await table.countRows(), 315);
  },
  async tags() {
    const tags = await table.tags();
    await tags.create("first", 1);
    assert.equal(await tags.getVersion("first"), 1);
    await tags.update("first", 2);
    assert.equal((await tags.list()).first.version, 2);
    await table.checkout("first");
    assert.equal(await table.version(), 2);
    await table.checkoutLatest();
    await tags.delete("first");
  },
  async restore() {
    const other = await database.openTable(`${name}_other`);
    await other.checkout(1);
    await other.restore();
    assert.equal(await other.countRows(), 9);
  },
  async branches() {
    const branches = await table.branches();
    const branch = await branches.create("experiment");
    await branch.add(rows(1000, 5));
    assert.deepEqual([await branch.countRows(), await table.countRows()], [320, 315]);
    assert.deepEqual(Object.keys(await branches.list()), ["experiment"]);
    assert.equal(await (await branches.checkout("experiment")).countRows(), 320);
    await branches.delete("experiment");
  },
  async stats() {
    assert.equal((await table.stats()).numRows, 315);
  },
  async lsmWriteSpec() {
    await assert.rejects(table.query().useLsm(true).limit(1).toArray(), /no RTE specification/);
    await table.setLsmWriteSpec({ specType: "bucket", column: "id", numBuckets: 4, maintainedIndexes: [] });
    const spec = await table.getLsmWriteSpec();
    assert.deepEqual([spec.specType, spec.column, spec.numBuckets], ["bucket", "id", 4]);
    assert.equal((await table.query().useLsm(true).where("id = 7").limit(9).toArray()).length, 1);
    assert.deepEqual((await table.getLsmStats()).buckets, []);
    await table.flushLsm();
    await table.compactLsm();
    await table.checkpointLsm();
    await table.unsetLsmWriteSpec();
    assert.equal((await table.getLsmWriteSpec()) ?? null, null);
  },
  async namespaces() {
    const space = [`${name}_space`];
    await database.createNamespace(space, { properties: { owner: "ann" } });
    assert.ok((await database.listNamespaces([])).namespaces.includes(space[0]));
    assert.equal((await database.describeNamespace(space)).properties.owner, "ann");
    const inner = await database.createTable("inner", rows(0, 2), space, { schema });
    assert.equal(await inner.countRows(), 2);
    await assert.rejects(database.dropNamespace(space));
    await database.dropTable("inner", space);
    await database.dropNamespace(space);
  },
  async renameTable() {
    await database.renameTable(`${name}_other`, `${name}_renamed`);
    const fresh = await lancedb.connect("db://main", { apiKey, hostOverride: url }); // the other keeps the old handle
    assert.equal(await (await fresh.openTable(`${name}_renamed`)).countRows(), 9);
  },
  async dropTable() {
    for (const each of [name, `${name}_renamed`, `${name}_empty`]) await database.dropTable(each);
    await assert.rejects(database.openTable(name), /not found/);
  },
};

for (const [call, run] of Object.entries(calls)) {
  let error = null;
  try {
    await run();
  } catch (raised) {
    error = String(raised.message ?? raised).slice(0, 1000);
  }
  console.log(JSON.stringify({ call, error }));
}
