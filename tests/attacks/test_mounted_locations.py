"""An attacker who writes entries into a mounted catalog: none opens, or hands out, what is another table's or ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from tests.mounts.backends import new_name, unity_backend
from tests.mounts.served.conftest import MOUNT, environ
from tests.services.guarded_s3 import SECRETS, guarded_s3
from tests.services.secured import Secured, secured_server
from tests.services.unity import unity_stub
from tests.services.wire import Wire, check_error, stream
from tiltyard.model.ids import Id
from tiltyard.mounts import MountedCatalog

ROWS = pa.table({"id": [1, 2, 3], "secret": ["a", "b", "c"]})
HOME = Id(("c", "s"))
ADDED = stream(pa.table({"id": [9], "secret": ["x"]}))


@dataclass
class Attacked:
    """A server, its root, the catalog that is mounted in it, and what each of two callers calls."""

    secured: Secured
    root: Path
    catalog: MountedCatalog
    owner: Wire
    ann: Wire

    def plant(self, location: str) -> list[str]:
        """Write an entry into the mounted catalog; return its id here."""
        name = new_name("planted")
        self.catalog.declare_table(Id((*HOME, name)), location, {})
        return [MOUNT, *HOME, name]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """Ann may do everything below the mount, and reads masked tables."""
    folder = tmp_path_factory.mktemp("attacked")
    with unity_stub() as unity, pytest.MonkeyPatch.context() as patch:
        backend = unity_backend(unity, folder / "lake", patch)
        catalog = backend.open()
        for depth in (1, 2):
            catalog.create_namespace(Id(HOME[:depth]), {})
        root = folder / "served"
        with secured_server(root, environ=environ(backend, folder, 0.0), names=("ann",)) as running:
            owner, ann = running.wire("administrator"), running.wire("ann")
            grants = ("read", "write", "create", "drop")
            body = {"object_kind": "namespace", "id": [MOUNT], "grantee": "ann", "privileges": grants}
            assert owner.http.post("/tiltyard/v1/grant/add", json=body).status_code == 200
            yield Attacked(running, root, catalog, owner, ann)
        catalog.close()


def mask(attacked: Attacked, table: list[str]) -> str:
    """Let Ann see two rows of a table without their secrets; return its location."""
    owner = attacked.owner
    body = {"object_kind": "table", "id": table, "grantee": "ann", "privileges": ["read"]}
    assert owner.http.post("/tiltyard/v1/grant/add", json=body).status_code == 200
    policy = {"name": "p", "filter": "id > 1", "masks": [{"column": "secret", "mask": "null"}]}
    assert owner.http.post(f"/tiltyard/v1/table/{'$'.join(table)}/policy/set", json=policy).status_code == 200
    location: str = owner.call("table", table, "describe").json()["location"]
    return location


def create_masked(attacked: Attacked, *namespace: str) -> tuple[list[str], str]:
    """Create a table that is masked; return its id and its location."""
    table = [*namespace, new_name("masked")]
    assert attacked.owner.call("table", table, "create", stream(ROWS)).status_code == 200
    return table, mask(attacked, table)


def register_masked(attacked: Attacked) -> tuple[list[str], str]:
    """Register a masked table of ours in a folder of its own below the root; return its id and its location."""
    table = [new_name("masked")]
    place = str(attacked.root / new_name("folder") / "t")
    lance.write_dataset(ROWS, place)
    registered = attacked.owner.call("table", table, "register", {"location": place})
    assert registered.status_code == 200, registered.text
    return table, mask(attacked, table)


def check_refused(wire: Wire, table: list[str]) -> None:
    """Check that nothing is done with a table, whatever is asked for."""
    requests = {
        "describe": {"vend_credentials": True},
        "count_rows": None,
        "query": {"k": 10, "vector": {}},
        "insert": ADDED,
        "create": ADDED,
        "delete": {"predicate": "true"},
        "drop": None,
    }
    codes = {action: check_error(wire.call("table", table, action, body)) for action, body in requests.items()}
    assert set(codes.values()) == {19}, (table, codes)


def files_below(folder: Path) -> set[Path]:
    """Return all files below a folder, without the catalog's own, which change."""
    return {path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("catalog.db")}


def places_of(location: str) -> list[str]:
    """Return locations in, at and around a table's folder."""
    inside = [f"{location}/{folder}" for folder in ("data", "_versions", "tree/x", "_indices/x", "new")]
    return [location, f"{location}/", *inside, location.rpartition("/")[0]]


def test_entry_at_in_or_around_a_table_of_ours_is_not_served(attacked: Attacked) -> None:
    table, location = register_masked(attacked)
    before = files_below(attacked.root)
    for place in places_of(location):
        entry = attacked.plant(place)
        check_refused(attacked.ann, entry)
        check_refused(attacked.owner, entry)
    assert files_below(attacked.root) == before
    assert attacked.ann.call("table", table, "count_rows").json() == 2


def test_entry_in_or_around_a_mounted_table_is_not_served(attacked: Attacked) -> None:
    table, location = create_masked(attacked, MOUNT, *HOME)
    for place in places_of(location):
        check_refused(attacked.ann, attacked.plant(place))
    assert attacked.ann.call("table", table, "count_rows").json() == 2


def test_entry_at_in_or_around_the_folder_of_a_dropped_table_is_not_served_and_undrop_brings_all_back(
    attacked: Attacked,
) -> None:
    table, location = register_masked(attacked)
    assert attacked.owner.call("table", table, "drop").status_code == 200
    entries = [attacked.plant(place) for place in places_of(location)]
    for entry in entries:
        check_refused(attacked.ann, entry)
    undropped = attacked.owner.http.post(f"/tiltyard/v1/table/{table[0]}/undrop", json={})
    assert undropped.status_code == 200, undropped.text
    assert attacked.ann.call("table", table, "count_rows").json() == 2
    assert attacked.owner.call("table", table, "count_rows").json() == 3
    for entry in entries:
        check_refused(attacked.ann, entry)


def test_entry_at_the_servers_root_or_its_own_folders_is_not_served(attacked: Attacked) -> None:
    before = files_below(attacked.root)
    for folder in ("", "_functions", "_functions/x", "_spark-events"):
        check_refused(attacked.ann, attacked.plant(str(attacked.root / folder)))
    check_refused(attacked.ann, attacked.plant(str(attacked.root.parent)))
    assert files_below(attacked.root) == before


def test_mask_of_a_mounted_table_whose_entry_is_replaced_by_one_inside_stays(attacked: Attacked) -> None:
    table, location = create_masked(attacked, MOUNT, *HOME)
    attacked.catalog.deregister_table(Id(table[1:]))
    check_refused(attacked.ann, attacked.plant(f"{location}/data"))
    again = attacked.plant(location)
    assert attacked.ann.call("table", again, "count_rows").json() == 2


def test_administrator_finds_and_removes_such_entries(attacked: Attacked) -> None:
    table, location = register_masked(attacked)
    planted = [attacked.plant(place) for place in places_of(location)]
    found = check_mount(attacked)
    assert set(found) >= {tuple(entry) for entry in planted}
    inside = f"Its location is inside or around the folder of {table[0]}: deregister one of the two."
    assert [found[tuple(entry)] for entry in planted[2:]] == [inside] * len(planted[2:])
    assert check_error(attacked.ann.call("table", planted[2], "deregister")) == 19
    for entry in planted:
        removed = attacked.owner.call("table", entry, "deregister")
        assert removed.status_code == 200, removed.text
    assert not set(check_mount(attacked)) & {tuple(entry) for entry in planted}
    assert attacked.owner.call("table", table, "count_rows").json() == 3


def check_mount(attacked: Attacked) -> dict[tuple[str, ...], str]:
    """Return the problems that CheckMount finds, by the entries that have them."""
    checked = attacked.owner.http.post(f"/tiltyard/v1/mount/{MOUNT}/check", json={}).json()
    return {tuple(finding["id"]): finding["problem"] for finding in checked["findings"]}


@pytest.mark.extended
def test_no_credentials_are_vended_for_an_entry_at_in_or_around_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with guarded_s3(0) as objects, unity_stub() as unity:
        bucket = objects.new_bucket("lake")
        backend = unity_backend(unity, tmp_path, monkeypatch)
        catalog = backend.open()
        for depth in (1, 2):
            catalog.create_namespace(Id(HOME[:depth]), {})
        mount = {"kind": "unity", **backend.settings, "root": f"{bucket}/lake", "allowed_locations": [bucket]}
        environ = {
            "TILTYARD_STORAGE": json.dumps({"lake": objects.storage(bucket)}),
            "TILTYARD_MOUNTS": json.dumps({MOUNT: mount}),
            **SECRETS,
        }
        db = f"sqlite:///{tmp_path}/catalog.db"
        with secured_server(f"{bucket}/tables", db=db, environ=environ, names=("ann",)) as running:
            attacked = Attacked(running, tmp_path, catalog, running.wire("administrator"), running.wire("ann"))
            for table in (["own"], [MOUNT, *HOME, "t"]):
                assert attacked.owner.call("table", table, "create", stream(ROWS)).status_code == 200
                described = attacked.owner.call("table", table, "describe", {"vend_credentials": True}).json()
                assert "aws_session_token" in described["storage_options"]
                for place in places_of(described["location"]):
                    entry = attacked.plant(place)
                    refused = attacked.owner.call("table", entry, "describe", {"vend_credentials": True})
                    assert check_error(refused) == 19, refused.text
                    assert "storage_options" not in refused.json()
            assert attacked.owner.call("table", ["own"], "drop").status_code == 200
            for place in places_of(attacked.catalog.get_table(Id((*HOME, "t"))).location)[2:]:
                refused = attacked.owner.call("table", attacked.plant(place), "describe", {"vend_credentials": True})
                assert check_error(refused) == 19, refused.text
        catalog.close()
