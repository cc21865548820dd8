"""Write rows of a job: cast, check, write Lance files in tasks, commit them in the driver."""
