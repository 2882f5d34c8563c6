"""The service that people talk to."""
