"""The kinds of objects that a file declares, in the order in which they are created; they are deleted in the other."""

from __future__ import annotations

from typing import Any

from tiltyard.declarations.kind import Kind
from tiltyard.declarations.kinds.access import Grants, Policies, Roles
from tiltyard.declarations.kinds.classifications import ClassificationPolicies, Classifications
from tiltyard.declarations.kinds.functions import Functions
from tiltyard.declarations.kinds.namespaces import Namespaces
from tiltyard.declarations.kinds.other_catalogs import Mounts, Publications
from tiltyard.declarations.kinds.protections import Protections
from tiltyard.declarations.kinds.quotas import Quotas
from tiltyard.declarations.kinds.schedules import Schedules
from tiltyard.declarations.kinds.tables import Tables
from tiltyard.declarations.kinds.views import Views

KINDS: tuple[Kind[Any], ...] = (
    Roles(),
    Namespaces(),
    Mounts(),
    Functions(),
    Tables(),
    Views(),
    Classifications(),
    ClassificationPolicies(),
    Policies(),
    Grants(),
    Publications(),
    Schedules(),
    Quotas(),
    Protections(),
)
