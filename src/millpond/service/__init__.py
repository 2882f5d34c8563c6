"""A pond as a service: HTTP API, leader and standby, typed client, and the commands of the terminal."""
