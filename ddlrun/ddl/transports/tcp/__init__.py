"""Messages between ranks over TCP, for jobs without MPI."""
