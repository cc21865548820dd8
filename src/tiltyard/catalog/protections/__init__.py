"""Operations on protections, and on calls that need the approval of a second principal."""
