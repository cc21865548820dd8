#!/usr/bin/env bash
# The first quarter of an hour with Tiltyard, as a newcomer types it, in an empty folder: a server, a file, searches, SQL,
# an index, Python, lancedb, an export. It wants `tiltyard` (with its extra `sql`), `lancedb` and `curl` on the PATH, no
# Java and no network, and leaves a server's folder and a few files behind.
set -euo pipefail

port=${PORT:-2333}
url=http://127.0.0.1:$port
export XDG_CONFIG_HOME=$PWD/config XDG_STATE_HOME=$PWD/state NO_COLOR=1

say() { printf '\n%s  $ %s\n' "$(date +%T)" "$*" >&2; }
run() { say "$@"; "$@"; }

say tiltyard serve --root ./data
tiltyard serve --root ./data --port "$port" 2>server.log &
server=$!
trap 'kill $server 2>/dev/null || true; wait $server 2>/dev/null || true' EXIT
until curl -sf "$url/health/ready" >/dev/null; do
  kill -0 $server || { cat server.log >&2; exit 1; }
  sleep 0.1
done

cat >films.csv <<'CSV'
id,title,year,plot
1,Roman Holiday,1953,A princess and a reporter spend a day in Rome
2,Up,2009,An old man flies his house to a waterfall by balloons
3,Moby Dick,1956,A captain hunts a white whale over all the seas
4,Free Willy,1993,A boy frees a captive whale
CSV

run tiltyard login "$url" --no-key
run tiltyard import films.csv films
run tiltyard ls -l
run tiltyard head films -n 2 --columns title,year
run tiltyard sql 'SELECT year / 10 * 10 AS decade, count(*) AS films FROM films GROUP BY decade ORDER BY decade'

run tiltyard index create films plot FTS --wait
run tiltyard search films whale --columns title,year
say curl "$url/console/search/films?mode=text&text=whale"
curl -sf "$url/console/search/films?mode=text&text=whale" >page.html
grep -o 'Free Willy' page.html | head -1

say python: a search by lancedb
python - "$url" <<'PYTHON'
import sys

import lancedb

films = lancedb.connect("db://main", api_key="any", host_override=sys.argv[1]).open_table("films")
print(sorted(hit["title"] for hit in films.search("whale", query_type="fts").to_list()))
PYTHON

say python: vectors, an upsert, versions
python - "$url" <<'PYTHON'
import sys

import pyarrow as pa
import tiltyard

with tiltyard.connect(sys.argv[1]) as lake:
    vectors = pa.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.7, 0.3]], pa.list_(pa.float32(), 2))
    near = lake.create_table("near", lake["films"].to_arrow().append_column("vector", vectors))
    print(near.search([1.0, 0.0], k=2, columns="title")["title"].to_pylist())
    lake["films"].upsert([{"id": 2, "title": "Up (2009)", "year": 2009, "plot": "Balloons"}], key="id")
    print([entry["version"] for entry in lake["films"].versions(limit=1)])
PYTHON

run tiltyard search near --like "title = 'Moby Dick'" -n 2 --columns title
run tiltyard export films films.parquet

kill $server
wait $server
trap - EXIT
say the server has stopped
