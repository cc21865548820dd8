"""Operations on jobs and transactions' jobs: submit, authorize, steer, list their events."""
