"""The metrics of a service, for Prometheus and OpenTelemetry.

Imports the modules of `service/server` that read a pond. Begin with `prometheus.py`.
"""
