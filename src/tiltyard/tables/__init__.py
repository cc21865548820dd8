"""Operations on the data of tables."""
