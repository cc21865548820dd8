"""A metastore that lets only Kerberos's principals in; needs MIT's KDC and the package gssapi."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError, UnauthenticatedError

from tests.services.hive import HiveMetastore, hive_metastore
from tests.services.kerberos import MOUNT, SERVICE, Realm, has_kerberos, kerberos_realm
from tiltyard.model.ids import Id
from tiltyard.mounts import MountedCatalog, open_catalog

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    pytest.importorskip("gssapi")
    if not has_kerberos():
        pytest.skip("MIT's KDC is not installed")
    with kerberos_realm(tmp_path_factory.mktemp("realm")) as realm:
        yield realm


@pytest.fixture(scope="module", params=["authentication", "integrity", "privacy"])
def metastore(
    request: pytest.FixtureRequest, realm: Realm, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HiveMetastore]:
    """A metastore with one of Hadoop's protections."""
    folder = tmp_path_factory.mktemp("hive")
    protection = {"hadoop.security.authentication": "kerberos", "hadoop.rpc.protection": request.param}
    properties = "".join(
        f"<property><name>{key}</name><value>{value}</value></property>" for key, value in protection.items()
    )
    (folder / "core-site.xml").write_text(f"<configuration>{properties}</configuration>")
    settings = {
        "hive.metastore.sasl.enabled": "true",
        "hive.metastore.kerberos.principal": SERVICE,
        "hive.metastore.kerberos.keytab.file": str(realm.service_keys),
        **protection,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.krb5.conf={realm.configuration}")
        with hive_metastore(folder, more=settings) as metastore:
            yield metastore


@pytest.fixture
def settings(metastore: HiveMetastore, realm: Realm, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("KRB5_CONFIG", str(realm.configuration))
    return {
        "uri": f"thrift://localhost:{metastore.port}", "kerberos": True, "principal": MOUNT,
        "keytab": str(realm.mount_keys), "timeout": 20,
    }  # fmt: skip


def opened(settings: dict[str, Any], **changed: Any) -> MountedCatalog:
    return open_catalog("hive", {**settings, **changed})


def test_a_principal_with_a_keytab_is_let_in(settings: dict[str, Any]) -> None:
    catalog = opened(settings)
    catalog.create_namespace(Id(("db",)), {"a": "b" * 3_000})
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: catalog.get_namespace(Id(("db",))), range(16)))
    assert all(len(properties["a"]) == 3_000 for properties in found)
    catalog.declare_table(Id(("db", "t")), None, {})
    assert catalog.list_tables(Id(("db",))).names == ("t",)
    catalog.deregister_table(Id(("db", "t")))
    catalog.drop_namespace(Id(("db",)))
    catalog.close()


def test_whoever_has_no_ticket_is_not_let_in(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UnauthenticatedError, match="Kerberos"):
        opened(settings, keytab=str(tmp_path / "none")).list_namespaces(Id())
    with pytest.raises(UnauthenticatedError, match="Kerberos"):
        opened(settings, kerberos_host="elsewhere").list_namespaces(Id())
    without = {key: settings[key] for key in ("uri", "timeout")}
    with pytest.raises(ServiceUnavailableError):
        opened(without, timeout=3).list_namespaces(Id())


def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any]) -> None:
    for wrong in ({"keytab": ""}, {"principal": ""}, {"kerberos": False}):
        with pytest.raises(InvalidInputError):
            opened(settings, **wrong)
