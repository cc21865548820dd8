"""Upkeep: extend indexes to new rows, compact small fragments and remove old versions, by the servers themselves."""
