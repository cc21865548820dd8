"""Operations on mounts and on what is below one, publications, and moves of tables between catalogs."""
