"""Settings of a mount that reaches AWS: whose keys, and which role is assumed with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from lance_namespace.errors import InvalidInputError

from tiltyard.mounts.mount_settings import SECRET


@dataclass(frozen=True, kw_only=True)
class AwsKeys:
    """The keys of a mount; without any, those of the host (AWS's default chain).

    `role_arn` is a role that is assumed with these keys, `role_external_id` what its owner has agreed on with us,
    `role_session_name` what its log calls us. `sts_endpoint` is for others than AWS.
    """

    profile: str = ""
    access_key_id: str = field(default="", repr=False, metadata=SECRET)
    secret_access_key: str = field(default="", repr=False, metadata=SECRET)
    session_token: str = field(default="", repr=False, metadata=SECRET)
    role_arn: str = ""
    role_external_id: str = ""
    role_session_name: str = "tiltyard"
    sts_endpoint: str = ""

    def check_keys(self) -> None:
        """Raise ValueError for what cannot be used."""
        if bool(self.access_key_id) != bool(self.secret_access_key):
            raise ValueError("access_key_id and secret_access_key come together")
        if self.profile and self.access_key_id:
            raise ValueError("profile and access_key_id exclude each other")
        if self.role_arn and not self.role_arn.startswith("arn:"):
            raise ValueError(f"role_arn is {self.role_arn!r}: arn:aws:iam::ACCOUNT:role/NAME")


def load_aws(kind: str) -> Any:
    """Return the module that needs botocore. Raises InvalidInputError where that is not installed."""
    try:
        return import_module("tiltyard.mounts.http.aws_session")
    except ImportError as error:
        raise InvalidInputError(
            f"A mount of the kind '{kind}' needs more packages to sign requests ({error.name} is missing): "
            'pip install "tiltyard[glue]".'
        ) from error
