"""Build the providers' policies that restrict vended credentials to a folder.

Each policy has the folder with its trailing slash, so that a sibling with the same prefix is excluded, and escapes the
folder's name: none of its characters is a wildcard, a variable or the end of a string.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tiltyard.storage.vending.vendor import Folder

_SPECIAL = re.compile(r"[*?$]")
_PARTITION = re.compile(r"arn:(aws[a-z-]*):")


def s3_literal(text: str) -> str:
    """Escape wildcards and variables of a text for an IAM policy."""
    return _SPECIAL.sub(lambda match: f"${{{match[0]}}}", text)


def s3_policy(folder: Folder, role: str, *, writable: bool, kms_key: str = "") -> str:
    """Build the session policy for a folder, as JSON: the upper bound of what a session of the role may do."""
    partition = match[1] if (match := _PARTITION.match(role)) else "aws"
    bucket, prefix = f"arn:{partition}:s3:::{s3_literal(folder.bucket)}", s3_literal(folder.prefix)
    objects = ["s3:GetObject"]
    if writable:
        objects += ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
    statements: list[dict[str, Any]] = [
        {"Effect": "Allow", "Action": objects, "Resource": f"{bucket}/{prefix}*"},
        {
            "Effect": "Allow",
            "Action": ["s3:ListBucket"],
            "Resource": bucket,
            "Condition": {"StringLike": {"s3:prefix": [f"{prefix}*"]}},
        },
    ]
    if kms_key:
        actions = ["kms:Decrypt", *(["kms:GenerateDataKey"] if writable else [])]
        statements.append({"Effect": "Allow", "Action": actions, "Resource": kms_key})
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"), ensure_ascii=False)


def cel_string(text: str) -> str:
    """Quote a text as a string of the Common Expression Language."""
    return json.dumps(text, ensure_ascii=False)


def gcs_condition(folder: Folder) -> str:
    """Build the condition of a credential access boundary that allows to access and list a folder's objects."""
    objects = cel_string(f"projects/_/buckets/{folder.bucket}/objects/{folder.prefix}")
    list_prefix = 'api.getAttribute("storage.googleapis.com/objectListPrefix", "")'
    return f"resource.name.startsWith({objects}) || {list_prefix}.startsWith({cel_string(folder.prefix)})"


def gcs_permissions(*, writable: bool) -> list[str]:
    """Return the permissions of a credential access boundary; write permissions exclude access control lists."""
    return [f"inRole:roles/storage.{'objectUser' if writable else 'objectViewer'}"]


def azure_permissions(*, writable: bool) -> str:
    """Return the permissions of a shared access signature, in the order that Azure requires.

    Read and list; add, create, write, delete and move as well if writable.
    """
    return "racwdlm" if writable else "rl"
