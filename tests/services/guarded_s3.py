"""moto's S3 and STS behind a guard that holds sessions to their policies and their time, as AWS does.

moto gives out sessions and looks at neither. The guard evaluates the session policy of each request to S3 (allowed
actions, resources with wildcards, variables and their escapes, `StringLike` on `s3:prefix`), refuses what has expired,
and remembers what it was asked. The server's own key may do everything.

    python -m tests.services.guarded_s3 PORT SECONDS
"""

from __future__ import annotations

import datetime
import io
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote

from tests.services.moto_server import prepare_moto
from tests.services.ports import reserve_port
from tests.services.s3 import S3Server, wait_for_s3

ROLE = "arn:aws:iam::123456789012:role/tables"
OWN_KEY = "testing"
SECRETS = {"LAKE_KEY": OWN_KEY, "LAKE_SECRET": "testing"}
_KEY = re.compile(r"Credential=([^/]+)/")
_TOKEN = re.compile(r"\$\{([^}]*)\}|(\*)|(\?)|(.)", re.DOTALL)


def matches(pattern: str, text: str) -> bool:
    """Return whether a text matches a pattern of IAM; variables other than the escapes match nothing here."""
    expression = ""
    for variable, star, question, plain in _TOKEN.findall(pattern):
        if variable:
            if variable not in ("*", "?", "$"):
                return False
            expression += re.escape(variable)
        else:
            expression += ".*" if star else "." if question else re.escape(plain)
    return re.fullmatch(expression, text, re.DOTALL) is not None


def allows(policy: str, action: str, resource: str, prefix: str | None) -> bool:
    """Return whether a policy of Allow statements permits this."""
    for statement in json.loads(policy)["Statement"]:
        assert statement["Effect"] == "Allow"
        actions, resources = _listed(statement["Action"]), _listed(statement["Resource"])
        condition = statement.get("Condition")
        if not any(matches(pattern, action) for pattern in actions) or not any(
            matches(pattern, resource) for pattern in resources
        ):
            continue
        if condition is None:
            return True
        assert list(condition) == ["StringLike"] and list(condition["StringLike"]) == ["s3:prefix"]
        if prefix is not None and any(matches(pattern, prefix) for pattern in condition["StringLike"]["s3:prefix"]):
            return True
    return False


def _listed(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]


@dataclass(frozen=True)
class RequiredAction:
    """An action on a resource; `prefix` of a list."""

    action: str
    resource: str
    prefix: str | None = None


def required_actions(environ: dict[str, Any]) -> list[RequiredAction]:
    """Return the actions that a request in path style needs, according to S3's documentation."""
    bucket, _, key = unquote(environ["PATH_INFO"].encode("latin-1").decode()).lstrip("/").partition("/")
    query, method = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True), environ["REQUEST_METHOD"]
    arn = f"arn:aws:s3:::{bucket}"
    if key:
        action = {"GET": "s3:GetObject", "HEAD": "s3:GetObject", "DELETE": "s3:DeleteObject"}.get(method)
        if method == "DELETE" and "uploadId" in query:
            action = "s3:AbortMultipartUpload"
        requests = [RequiredAction(action or "s3:PutObject", f"{arn}/{key}")]
        if source := environ.get("HTTP_X_AMZ_COPY_SOURCE"):
            requests.append(RequiredAction("s3:GetObject", f"arn:aws:s3:::{unquote(source).lstrip('/')}"))
        return requests
    if method == "GET" and not {"policy", "acl", "location", "versioning"} & set(query):
        return [RequiredAction("s3:ListBucket", arn, query.get("prefix", [""])[0])]
    if method == "POST" and "delete" in query:
        keys = re.findall(r"<Key>(.*?)</Key>", _body(environ).decode())
        return [RequiredAction("s3:DeleteObject", f"{arn}/{deleted_key}") for deleted_key in keys]
    return [RequiredAction(f"s3:{method}Bucket", arn)]


class Guard:
    """A WSGI application in front of moto's."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.log: list[dict[str, Any]] = []

    def __call__(self, environ: dict[str, Any], start: Any) -> Any:
        if environ["PATH_INFO"] == "/guard":
            start("200 OK", [("content-type", "application/json")])
            return [json.dumps(self.log).encode()]
        credential = _KEY.search(environ.get("HTTP_AUTHORIZATION", ""))
        if credential is None or "/sts/" in environ["HTTP_AUTHORIZATION"]:
            self._note_session(environ)
            return self._inner(environ, start)
        if credential[1] == OWN_KEY:
            return self._inner(environ, start)
        role = _session(credential[1])
        reason = _refusal(role, environ)
        for request in required_actions(environ) if role is not None else []:
            permitted = reason is None and allows(role.policy, request.action, request.resource, request.prefix)
            self.log.append({"key": credential[1], "allowed": permitted, **vars(request)})
            if not permitted:
                reason = reason or "AccessDenied"
        if reason is None:
            return self._inner(environ, start)
        start("403 Forbidden", [("content-type", "application/xml")])
        return [f"<Error><Code>{reason}</Code><Message>{reason}</Message></Error>".encode()]

    def _note_session(self, environ: dict[str, Any]) -> None:
        if environ["REQUEST_METHOD"] == "POST":
            form = {name: values[0] for name, values in parse_qs(_body(environ).decode()).items()}
            if form.get("Action") == "AssumeRole":
                self.log.append({"action": "sts:AssumeRole", "policy": form["Policy"], "name": form["RoleSessionName"]})


def _body(environ: dict[str, Any]) -> bytes:
    """A request's body, which can be read again."""
    body: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    return body


def _session(key: str) -> Any:
    from moto.sts.models import sts_backends

    for account in sts_backends.values():
        for backend in account.values():
            if (role := backend.get_assumed_role_from_access_key(key)) is not None:
                return role
    return None


def _refusal(role: Any, environ: dict[str, Any]) -> str | None:
    if role is None or environ.get("HTTP_X_AMZ_SECURITY_TOKEN") != role.session_token:
        return "InvalidAccessKeyId"
    now = datetime.datetime.now(datetime.UTC)
    expiration = role.expiration if role.expiration.tzinfo else role.expiration.replace(tzinfo=datetime.UTC)
    return "ExpiredToken" if now >= expiration else None


def main(port: int, seconds: int) -> None:
    """Serve. Sessions live for `seconds`, whatever was requested; 0 means as requested."""
    from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from moto.sts.models import AssumedRole
    from werkzeug.serving import run_simple

    original_init = AssumedRole.__init__

    def short_lived(self: Any, *arguments: Any, **options: Any) -> None:
        original_init(self, *arguments, **options)
        if seconds:
            self.expiration = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)

    prepare_moto()
    AssumedRole.__init__ = short_lived  # type: ignore[method-assign]  # no other way to a life under 15 minutes
    inner = DomainDispatcherApplication(create_backend_app)
    run_simple("127.0.0.1", port, Guard(inner), threaded=True, request_handler=MotoRequestHandler)


class GuardedS3(S3Server):
    """The address of the server."""

    def log(self) -> list[dict[str, Any]]:
        """Return the requests of sessions, and the sessions themselves, in order."""
        with urllib.request.urlopen(f"{self.endpoint}/guard", timeout=10) as response:
            entries: list[dict[str, Any]] = json.loads(response.read())
            return entries

    def sessions(self) -> list[dict[str, Any]]:
        """The sessions that were given out, in order."""
        return [entry for entry in self.log() if entry["action"] == "sts:AssumeRole"]

    def storage(self, uri: str, **fields: Any) -> dict[str, Any]:
        """The settings of a named storage on it, which hands out credentials; the key is in variables."""
        credentials = {"aws_access_key_id": "env:LAKE_KEY", "aws_secret_access_key": "env:LAKE_SECRET"}
        own = {"uri": uri, "endpoint": self.endpoint, "sts_endpoint": self.endpoint, "region": "us-east-1"}
        return {**own, "credentials": credentials, "vend": True, "role": ROLE, **fields}


@contextmanager
def guarded_s3(seconds: int = 0) -> Iterator[GuardedS3]:
    """Run a server on a free port."""
    port, reserved = reserve_port()
    command = [sys.executable, "-m", "tests.services.guarded_s3", str(port), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        server = GuardedS3(f"http://127.0.0.1:{port}")
        wait_for_s3(server.endpoint, process)
        yield server
    finally:
        process.terminate()
        process.wait(30)
        reserved.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
