"""The history checker: writers and readers with journals, faults in servers, and a judge that checks the storage."""
