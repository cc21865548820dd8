"""Ask Open Policy Agent (its data API) or OpenFGA (check, batch-check) whether a caller may do something to objects.

Whatever is no answer by the protocol is an error, and allows nothing: a status of 300 or more, a body that is too
large, no JSON, JSON of another form, and no answer within the deadline.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import msgspec
from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError

from tiltyard.model.settings.decision_services import ServiceKind
from tiltyard.model.settings.storages import read_secret
from tiltyard.mounts.http.client import BearerToken, HttpConnections, HttpSettings, JsonClient, ResponseError
from tiltyard.runtime.pool import run_together

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tiltyard.model.decisions import AskedObject
    from tiltyard.model.settings.decision_services import DecisionService

MAX_DECISION_BYTES = 1 << 20
"""Bytes of an answer; a larger one is none."""
MAX_BATCH_CHECKS = 50
"""Checks of one batch-check: what OpenFGA takes unless it is set otherwise."""
MAX_CONTEXTUAL_TUPLES = 100
"""Groups and roles of a caller that OpenFGA takes with a check."""
MAX_USER_BYTES, MAX_OBJECT_BYTES = 512, 256
"""Bytes of the names of users and of objects that OpenFGA takes."""
MAX_ID_CHARACTERS = 128
"""Characters of a decision's id that are kept."""


class UnansweredError(Exception):
    """A service has not answered: it is away, too slow, or fails."""


class UnusableAnswerError(Exception):
    """A service has answered what is no decision by its protocol."""


class Asker(msgspec.Struct, frozen=True):
    """Who asks, for which operation. `request_id` is told, and is no part of the question."""

    name: str
    groups: tuple[str, ...]
    roles: tuple[str, ...]
    is_administrator: bool
    operation: str
    request_id: str


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """Whether something is allowed, and the service's id of the decision, if it gives one."""

    allowed: bool
    id: str = ""


DENIED = Decision(allowed=False)


class DecisionProtocol(Protocol):
    """How a service is asked."""

    def decide(self, asker: Asker, objects: Sequence[AskedObject], until: float) -> list[Decision]:
        """Return the decision about each object, at `until` (of time.monotonic) at the latest.

        Raises UnansweredError, UnusableAnswerError.
        """

    def close(self) -> None:
        """Close connections."""


def open_protocol(name: str, service: DecisionService) -> DecisionProtocol:
    """Return what asks a service. Raises SecretError, InvalidInputError (certificates that cannot be read)."""
    token = read_secret(f"The service {name} of the setting decisions", service.token) if service.token else ""
    client = _Client(name, service, token)
    return OpenPolicyAgent(service, client) if service.kind is ServiceKind.OPA else OpenFga(service, client)


class _Client:
    """Posts JSON to one service within a deadline, by kept connections."""

    def __init__(self, name: str, service: DecisionService, token: str) -> None:
        seconds = service.deadline_ms / 1000
        settings = HttpSettings(
            uri=service.url,
            ca_file=service.ca_file,
            timeout=seconds,
            connect_timeout=seconds,
            connections=service.connections,
        )
        self._url = service.url.rstrip("/")
        self.connections = service.connections
        connections = HttpConnections(name, settings, max_response_bytes=MAX_DECISION_BYTES)
        self._json = JsonClient(name, connections, settings, BearerToken(token))

    def post(self, path: str, body: object, expected: Any, until: float) -> Any:
        """Return an answer of the type that is expected. Raises UnansweredError, UnusableAnswerError."""
        seconds = until - time.monotonic()
        if seconds <= 0:
            raise UnansweredError("has not answered all questions within its deadline")
        try:
            return self._json.request("POST", f"{self._url}{path}", body=body, expected=expected, seconds=seconds)
        except ResponseError as error:
            failure = UnansweredError if error.status >= 500 or error.status == 429 else UnusableAnswerError
            raise failure(f"answers with status {error.status}") from error
        except ServiceUnavailableError as error:  # the log has the last cause: that of the network, not our sentence
            raise UnansweredError("does not answer") from error.__cause__
        except LanceNamespaceError as error:
            raise UnusableAnswerError("answers what is no decision") from error.__cause__

    def close(self) -> None:
        self._json.close()


class _Data(msgspec.Struct):
    """An answer of Open Policy Agent; without a result, nothing at the path is defined."""

    result: Any = msgspec.UNSET
    decision_id: str = ""


class OpenPolicyAgent:
    """Asks at a path of the data API, `POST /v1/data/<path>`: true, or an object whose `allow` is true, allows."""

    def __init__(self, service: DecisionService, client: _Client) -> None:
        self._path = f"/v1/data/{service.path}"
        self._batch_path = f"/v1/data/{service.batch_path}" if service.batch_path else ""
        self._client = client

    def decide(self, asker: Asker, objects: Sequence[AskedObject], until: float) -> list[Decision]:
        told = {
            "principal": {
                "name": asker.name,
                "groups": asker.groups,
                "roles": asker.roles,
                "administrator": asker.is_administrator,
            },
            "operation": asker.operation,
            "request_id": asker.request_id,
        }
        if self._batch_path and len(objects) > 1:
            return self._decide_together(told, objects, until)
        return run_together(lambda each: self._decide_one(told, each, until), objects, self._client.connections)

    def _decide_one(self, told: Mapping[str, Any], each: AskedObject, until: float) -> Decision:
        asked = {**told, "privileges": each.privileges, "object": _object(each)}
        data: _Data = self._client.post(self._path, {"input": asked}, _Data, until)
        allowed = data.result.get("allow", msgspec.UNSET) if isinstance(data.result, dict) else data.result
        if allowed is msgspec.UNSET:  # the rule that would allow it has no value
            allowed = False
        if not isinstance(allowed, bool):
            raise UnusableAnswerError("answers what is neither true nor false, nor has allow")
        return Decision(allowed, data.decision_id[:MAX_ID_CHARACTERS])

    def _decide_together(self, told: Mapping[str, Any], objects: Sequence[AskedObject], until: float) -> list[Decision]:
        """Ask for the positions of the objects that are allowed."""
        named = [{**_object(each), "privileges": each.privileges} for each in objects]
        data: _Data = self._client.post(self._batch_path, {"input": {**told, "objects": named}}, _Data, until)
        positions = [] if data.result is msgspec.UNSET else data.result
        if not isinstance(positions, list) or not all(_is_position(each, len(objects)) for each in positions):
            raise UnusableAnswerError("answers what is no list of positions")
        allowed, decision_id = frozenset(positions), data.decision_id[:MAX_ID_CHARACTERS]
        return [Decision(position in allowed, decision_id) for position in range(len(objects))]

    def close(self) -> None:
        self._client.close()


def _object(each: AskedObject) -> dict[str, Any]:
    classified = {"classifications": each.classifications} if each.classifications else {}
    return {"kind": each.kind, "path": each.path, **classified}


def _is_position(value: object, number: int) -> bool:
    return type(value) is int and 0 <= value < number


class _Check(msgspec.Struct):
    allowed: bool


class _BatchCheck(msgspec.Struct):
    result: dict[str, _Check]


class OpenFga:
    """Asks whether users have relations to objects: `check` for one, `batch-check` for several.

    A user is `user:<name>`; an object `table:<path>`, `namespace:<path>` or `server:tiltyard`, where a path has `/`
    between its names, and is `/` for the root; in all names but letters, digits and `-._~` are percent-encoded. An
    object needs as many relations as privileges. What has a longer name than OpenFGA takes is denied.
    """

    def __init__(self, service: DecisionService, client: _Client) -> None:
        self._store = f"/stores/{service.store}"
        self._fixed = {"consistency": "HIGHER_CONSISTENCY"}
        if service.model:
            self._fixed["authorization_model_id"] = service.model
        self._relations = service.relations
        self._tells_groups = service.groups
        self._client = client

    def decide(self, asker: Asker, objects: Sequence[AskedObject], until: float) -> list[Decision]:
        user, told = f"user:{_encode(asker.name)}", self._told(asker)
        checks: list[dict[str, Any]] = []
        places: list[range] = []
        for each in objects:
            name = _object_name(each)
            if len(name) > MAX_OBJECT_BYTES or len(user) > MAX_USER_BYTES:
                places.append(range(-1, 0))
                continue
            start = len(checks)
            for privilege in each.privileges:
                relation = self._relations.get(privilege, privilege)
                checks.append({"tuple_key": {"user": user, "relation": relation, "object": name}, **told})
            places.append(range(start, len(checks)))
        allowed = self._check(checks, until)
        return [Decision(all(place >= 0 and allowed[place] for place in each)) for each in places]

    def _told(self, asker: Asker) -> dict[str, Any]:
        context = {
            "operation": asker.operation,
            "groups": asker.groups,
            "roles": asker.roles,
            "administrator": asker.is_administrator,
            "request_id": asker.request_id,
        }
        if not self._tells_groups:
            return {"context": context}
        named = [("group", name) for name in asker.groups] + [("role", name) for name in asker.roles]
        objects = [f"{kind}:{_encode(name)}" for kind, name in named]
        if len(objects) > MAX_CONTEXTUAL_TUPLES:
            raise UnusableAnswerError(f"takes {MAX_CONTEXTUAL_TUPLES} groups and roles, and the caller has more")
        user = f"user:{_encode(asker.name)}"
        tuples = [{"user": user, "relation": "member", "object": each} for each in objects]
        return {"context": context, "contextual_tuples": {"tuple_keys": tuples}}

    def _check(self, checks: Sequence[Mapping[str, Any]], until: float) -> list[bool]:
        if len(checks) == 1:
            body = {**checks[0], **self._fixed}
            answer: _Check = self._client.post(f"{self._store}/check", body, _Check, until)
            return [answer.allowed]
        starts = range(0, len(checks), MAX_BATCH_CHECKS)
        batches = [checks[start : start + MAX_BATCH_CHECKS] for start in starts]
        answers = run_together(lambda batch: self._check_batch(batch, until), batches, self._client.connections)
        return [allowed for batch in answers for allowed in batch]

    def _check_batch(self, checks: Sequence[Mapping[str, Any]], until: float) -> list[bool]:
        named = [{**check, "correlation_id": str(number)} for number, check in enumerate(checks)]
        body = {"checks": named, **self._fixed}
        answer: _BatchCheck = self._client.post(f"{self._store}/batch-check", body, _BatchCheck, until)
        try:
            return [answer.result[str(number)].allowed for number in range(len(checks))]
        except KeyError as error:
            raise UnusableAnswerError("leaves out a check") from error

    def close(self) -> None:
        self._client.close()


def _encode(name: str) -> str:
    return quote(name, safe="")


def _object_name(each: AskedObject) -> str:
    if each.kind == "server":
        return "server:tiltyard"
    return f"{each.kind}:{'/'.join(map(_encode, each.path)) or '/'}"
