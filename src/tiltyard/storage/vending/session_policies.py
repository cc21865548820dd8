"""What vended credentials may do, in the words of the providers: pure functions from a folder to a policy.

Each names the folder with its closing slash, so that a sibling whose name begins alike is another place, and takes
every character of the folder's name for itself: none is a wildcard, a variable or the end of a string.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tiltyard.storage.vending.vended_credentials import Folder

_SPECIAL = re.compile(r"[*?$]")
_PARTITION = re.compile(r"arn:(aws[a-z-]*):")


def s3_literal(text: str) -> str:
    """A text as IAM reads it literally: its wildcards and the start of its variables escaped."""
    return _SPECIAL.sub(lambda found: f"${{{found[0]}}}", text)


def s3_policy(folder: Folder, role: str, *, writable: bool, kms_key: str = "") -> str:
    """The session policy for a folder, as JSON: what a session of the role may do at most."""
    partition = found[1] if (found := _PARTITION.match(role)) else "aws"
    bucket, inside = f"arn:{partition}:s3:::{s3_literal(folder.bucket)}", s3_literal(folder.inside)
    objects = ["s3:GetObject"]
    if writable:
        objects += ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
    statements: list[dict[str, Any]] = [
        {"Effect": "Allow", "Action": objects, "Resource": f"{bucket}/{inside}*"},
        {
            "Effect": "Allow",
            "Action": ["s3:ListBucket"],
            "Resource": bucket,
            "Condition": {"StringLike": {"s3:prefix": [f"{inside}*"]}},
        },
    ]
    if kms_key:
        actions = ["kms:Decrypt", *(["kms:GenerateDataKey"] if writable else [])]
        statements.append({"Effect": "Allow", "Action": actions, "Resource": kms_key})
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"), ensure_ascii=False)


def cel_string(text: str) -> str:
    """A text as a string of the Common Expression Language."""
    return json.dumps(text, ensure_ascii=False)


def gcs_condition(folder: Folder) -> str:
    """The condition of a credential access boundary under which a folder's objects can be used and listed."""
    objects = cel_string(f"projects/_/buckets/{folder.bucket}/objects/{folder.inside}")
    listed = 'api.getAttribute("storage.googleapis.com/objectListPrefix", "")'
    return f"resource.name.startsWith({objects}) || {listed}.startsWith({cel_string(folder.inside)})"


def gcs_permissions(*, writable: bool) -> list[str]:
    """The permissions of a credential access boundary; those to write leave out access control lists."""
    return [f"inRole:roles/storage.{'objectUser' if writable else 'objectViewer'}"]


def azure_permissions(*, writable: bool) -> str:
    """The permissions of a shared access signature, in the order that Azure wants: read, list; add, create, write,
    delete, move as well.
    """
    return "racwdlm" if writable else "rl"
