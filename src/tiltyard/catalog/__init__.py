"""Operations on the catalog: namespaces, tables as entries, transactions and jobs, grants, roles, policies, garbage."""
