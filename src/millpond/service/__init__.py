"""A pond as a service: its verbs over HTTP, a leader and standbys, a typed client and the same verbs for a terminal."""
