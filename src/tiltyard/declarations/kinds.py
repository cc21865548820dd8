"""The kinds of objects that a file declares, in the order in which they are created; they are deleted in the other."""

from __future__ import annotations

from typing import Any

from tiltyard.declarations.access import Grants, Policies, Roles
from tiltyard.declarations.classifications import ClassificationPolicies, Classifications
from tiltyard.declarations.functions import Functions
from tiltyard.declarations.kind import Kind
from tiltyard.declarations.namespaces import Namespaces
from tiltyard.declarations.other_catalogs import Mounts, Publications
from tiltyard.declarations.protections import Protections
from tiltyard.declarations.quotas import Quotas
from tiltyard.declarations.schedules import Schedules
from tiltyard.declarations.tables import Tables
from tiltyard.declarations.views import Views

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
