"""What a worker process is given: an interpreter, variables, a profiler; and how that is made ready on its node."""
