"""Views: plain ones, and the definitions and changes of materialized ones."""
