"""A Kerberos realm on the loopback: MIT's KDC in a folder, with a principal for the metastore and one for a mount."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.services.ports import reserve_port

REALM = "TILTYARD.TEST"
SERVICE = f"hive/localhost@{REALM}"
MOUNT = f"mount@{REALM}"
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def has_kerberos() -> bool:
    """Whether MIT's KDC is installed."""
    return all(shutil.which(program, path=PATH) for program in ("krb5kdc", "kdb5_util", "kadmin.local"))


@dataclass(frozen=True)
class Realm:
    """Its configuration, and the keys of the service and of the mount."""

    configuration: Path
    service_keys: Path
    mount_keys: Path


@contextmanager
def kerberos_realm(folder: Path) -> Iterator[Realm]:
    """Run a KDC on a free port of the loopback."""
    port, reserved = reserve_port()
    realm = Realm(folder / "krb5.conf", folder / "service.keytab", folder / "mount.keytab")
    realm.configuration.write_text(
        f"[libdefaults]\ndefault_realm = {REALM}\ndns_lookup_kdc = false\ndns_canonicalize_hostname = false\n"
        f"rdns = false\nudp_preference_limit = 1\n[realms]\n{REALM} = {{\n kdc = 127.0.0.1:{port}\n}}\n"
    )
    (folder / "kdc.conf").write_text(
        f'[kdcdefaults]\nkdc_listen = ""\nkdc_tcp_listen = 127.0.0.1:{port}\n[realms]\n{REALM} = {{\n'
        f"database_name = {folder}/principal\nkey_stash_file = {folder}/stash\nmax_renewable_life = 1d\n}}\n"
        "[logging]\nkdc = FILE:" + f"{folder}/kdc.log\n"
    )
    environ = {
        **os.environ, "PATH": PATH, "KRB5_CONFIG": str(realm.configuration), "KRB5_KDC_PROFILE": f"{folder}/kdc.conf",
    }  # fmt: skip

    def run(*command: str) -> None:
        subprocess.run(command, env=environ, check=True, capture_output=True, timeout=60)

    run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
    for principal, keys in ((SERVICE, realm.service_keys), (MOUNT, realm.mount_keys)):
        run("kadmin.local", "-q", f"addprinc -randkey {principal}")
        run("kadmin.local", "-q", f"ktadd -k {keys} {principal}")
    process = subprocess.Popen(["krb5kdc", "-n"], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_kdc(port, process)
        yield realm
    finally:
        process.kill()
        process.wait(30)
        reserved.close()


def wait_for_kdc(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until it listens. Raises RuntimeError if it does not start."""
    until = time.monotonic() + 30
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError("the KDC did not start")
