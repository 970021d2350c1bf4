"""What both trainings share: data in a resumable order, state, schedules, several machines."""
