"""Operations on the catalog: namespaces, tables as entries, transactions."""
