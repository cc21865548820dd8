"""The page's examples run: a receiver that tells forged messages, and a reader in Python."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.services.server import ServerProcess
from tiltyard.config import ConfigError, load_settings
from tiltyard.events.signatures import WrongSignatureError, read_signing_secret, sign, verify

PAGE = (Path(__file__).parents[2] / "docs/events.md").read_text()
SHOWN_URL = "http://127.0.0.1:2333"


def test_examples_of_the_page_run_as_they_stand(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 2
    server = ServerProcess(tmp_path, environ={"TILTYARD_EVENTS": "true"})
    try:
        for number, example in enumerate(examples, 1):
            exec(compile(example.replace(SHOWN_URL, server.url), f"events example {number}", "exec"), {})
    finally:
        assert server.stop() == 0


def test_settings_of_the_page_are_settings_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    file = tmp_path / "tiltyard.toml"
    file.write_text(example[1])
    assert {*load_settings({}, file, environ={}).event_sinks} == {"bus", "lines"}
    wrong = {
        '{"a": {}}': "either its url or its file",
        '{"a": {"url": "http://x", "file": "/x"}}': "either its url or its file",
        '{"a": {"url": "http://x"}}': "needs a secret",
        '{"a": {"url": "http://x", "secret": "whsec_1"}}': "in plain text",
        '{"a": {"url": "ftp://x", "secret": "env:X"}}': "http or https",
        '{"a": {"file": "x"}}': "absolute path",
        '{"a": {"file": "/x", "files": 0}}': "files 1 to",
        '{"a": {"url": "http://x", "secret": "env:X", "attempts": 0}}': "attempts are 1 to",
        '{"a b": {"file": "/x"}}': "its name has",
    }
    for value, message in wrong.items():
        with pytest.raises(ConfigError, match=message):
            load_settings({}, None, environ={"TILTYARD_EVENT_SINKS": value})


def test_signature_is_that_of_standard_webhooks() -> None:
    # The example of the specification, https://www.standardwebhooks.com.
    key = read_signing_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    assert sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body) == (
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )
    for secret in ("whsec_c2hvcnQ=", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_???"):
        with pytest.raises(ValueError, match="whsec_"):
            read_signing_secret(secret)
    with pytest.raises(WrongSignatureError):
        verify("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", {}, body)
