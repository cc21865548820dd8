"""Methods of tables that are an operation of the catalog each, and the names under which people look for methods."""
