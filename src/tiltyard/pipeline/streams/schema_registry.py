"""Client of a schema registry: the Avro schemas of messages, by the ids that the messages begin with."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import quote

import urllib3
from lance_namespace.errors import ServiceUnavailableError

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.jobs import is_worker_driver
from tiltyard.pipeline.streams.messages import UnreadableMessageError

URL, USER_INFO, CA_FILE = (
    "schema.registry.url", "schema.registry.basic.auth.user.info", "schema.registry.ssl.ca.location",
)  # fmt: skip
REGISTRY_PROPERTIES = frozenset({URL, USER_INFO, CA_FILE})
"""Properties of a registry in the file of Kafka's: its address, USER:PASSWORD, and certificates that it is known by."""

ANSWER_SECONDS = 20.0
MAX_SCHEMA_BYTES = 4 << 20
MAX_SCHEMAS = 1_000
"""How many references a schema may have."""
_ADDRESS = re.compile(r"https?://[^/@\s?#]+(/[^@\s?#]*)?")


class SchemaRegistry:
    """A registry that speaks Confluent's REST API. Its schemas never change."""

    def __init__(self, url: str, user_info: str | None = None, ca_file: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._headers = urllib3.make_headers(basic_auth=user_info) if user_info else {}
        self._http = urllib3.PoolManager(retries=False, timeout=ANSWER_SECONDS, ca_certs=ca_file)

    @classmethod
    def open(cls, url: str | None, properties: Mapping[str, str]) -> SchemaRegistry | None:
        """Return the registry of an address, or of a file of properties; None where neither names one.

        A password is sent only to the registry that its file names. Raises RefusedError.
        """
        named = properties.get(URL)
        address = named if url is None else url
        if address is None:
            return None
        if not _ADDRESS.fullmatch(address):
            raise RefusedError(
                "--schema-registry is an address http://HOST:PORT or https://HOST without a user: name that in the "
                f"file of --kafka ({USER_INFO}=USER:PASSWORD)."
            )
        user_info = properties.get(USER_INFO)
        expected = named or (None if is_worker_driver() else address)
        if user_info is not None and (expected is None or expected.rstrip("/") != address.rstrip("/")):
            raise RefusedError(f"--kafka: the file is not for the schema registry {address} ({URL}).")
        return cls(address, user_info, properties.get(CA_FILE))

    def find(self, schema_id: int) -> list[Any]:
        """Return an Avro schema as JSON has it, after those that it refers to.

        Raises UnreadableMessageError (there is none of this id, or it is no Avro), RefusedError (no right to read it),
        ServiceUnavailableError.
        """
        schemas: dict[str, Any] = {}
        schema = self._fetch(f"schemas/ids/{schema_id}", f"the id {schema_id}", schemas)
        return [*schemas.values(), schema]

    def _fetch(self, path: str, what: str, schemas: dict[str, Any]) -> Any:
        """Return a schema; add those that it refers to, by their names, each behind its own."""
        answer = self._get(path, what)
        if answer.get("schemaType", "AVRO") != "AVRO":
            raise UnreadableMessageError(f"The schema of {what} is {answer['schemaType']}, and only Avro is read.")
        for reference in answer.get("references") or ():
            name, subject, version = (reference.get(key) for key in ("name", "subject", "version"))
            if name not in schemas:
                if len(schemas) >= MAX_SCHEMAS:
                    raise UnreadableMessageError(f"The schema of {what} refers to more than {MAX_SCHEMAS} others.")
                schemas[name] = None  # it is under way: a reference back to it does not fetch it again
                subject_path = f"subjects/{quote(str(subject), safe='')}/versions/{quote(str(version), safe='')}"
                found = self._fetch(subject_path, f"the subject {subject}", schemas)
                del schemas[name]
                schemas[name] = found
        try:
            return json.loads(answer["schema"])
        except (KeyError, TypeError, ValueError):
            self._fail(f"answers no schema for {what}")

    def _get(self, path: str, what: str) -> dict[str, Any]:
        try:
            response = self._http.request(
                "GET", f"{self._url}/{path}", headers=self._headers, redirect=False, preload_content=False
            )
            content = response.read(MAX_SCHEMA_BYTES + 1)
            response.release_conn() if len(content) <= MAX_SCHEMA_BYTES else response.close()
        except urllib3.exceptions.HTTPError as error:
            raise ServiceUnavailableError(f"The schema registry {self._url} does not answer.") from error
        if response.status == 404:
            raise UnreadableMessageError(f"The schema registry {self._url} has no schema of {what}.")
        if response.status in (401, 403):
            self._fail(f"answers {response.status}: name its user in the file of --kafka ({USER_INFO}=USER:PASSWORD)")
        if response.status >= 500 or response.status == 429:
            raise ServiceUnavailableError(f"The schema registry {self._url} answers {response.status}.")
        if len(content) > MAX_SCHEMA_BYTES:
            self._fail(f"answers more than {MAX_SCHEMA_BYTES >> 20} MiB for {what}")
        try:
            answer = json.loads(content)
        except ValueError:
            answer = None
        if response.status != 200 or not isinstance(answer, dict):
            self._fail(f"answers {response.status}, and no JSON, for {what}: is it the address of a registry?")
        return answer

    def _fail(self, reason: str) -> NoReturn:
        raise RefusedError(f"The schema registry {self._url} {reason}.")
