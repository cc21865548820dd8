"""The change feed: the rows that each version of a table inserted, updated and deleted.

versions → their lists of fragments, compared → groups of changed rows → rows with `_change`, `_version`, `_timestamp`
"""
