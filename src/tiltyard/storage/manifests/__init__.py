"""Manifests of Lance's tables: their form, what they name, how they are staged, checked, finalized and made."""
