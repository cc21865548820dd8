"""What columns of tables are classified as: kept up with their commits, taken from their fields, suggested."""
