"""Open object stores with Lance's options: obstore and Lance read them by the same Rust crate, object_store."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from obstore.exceptions import UnknownConfigurationKeyError
from obstore.store import from_url

if TYPE_CHECKING:
    from collections.abc import Mapping

CLIENT_OPTIONS = frozenset(
    {
        "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only",
        "http2_only", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "timeout", "user_agent",
    }
)  # fmt: skip
_FLAGS = frozenset({"allow_http", "allow_invalid_certificates", "http1_only", "http2_only"})


def open_object_store(url: str, options: Mapping[str, str], *, max_retries: int = 4) -> Any:
    """Open the store below a URL such as s3://bucket or s3://bucket/folder, with those options that it knows.

    The others are Lance's own. Raises obstore's errors for values that it cannot use.
    """
    retry: Any = {"max_retries": max_retries, "retry_timeout": timedelta(seconds=20)}
    client: Any = {"timeout": "30s", "connect_timeout": "5s"}
    client |= {
        name: value.lower() == "true" if name in _FLAGS else value
        for name, value in options.items()
        if name in CLIENT_OPTIONS
    }
    config = {name: value for name, value in options.items() if name not in CLIENT_OPTIONS}
    while True:
        try:
            return from_url(url, config=config, client_options=client, retry_config=retry)  # type: ignore[call-overload]  # kinds of stores differ in their options' types
        except UnknownConfigurationKeyError as error:
            unknown = [name for name in config if f"'{name}'" in str(error)]
            if not unknown:
                raise
            config = {name: value for name, value in config.items() if name not in unknown}
