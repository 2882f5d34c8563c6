"""Exports the metrics of a service to a collector of OpenTelemetry, if the environment names one.

The variables are those of OpenTelemetry's SDK
(https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/). Without a collector, nothing of
OpenTelemetry is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

from prometheus_client.metrics_core import Metric

from millpond.errors import SetupError
from millpond.version import install

ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
_INTERVAL_MS = 60_000


def exporting(
    families: Callable[[], Iterable[Metric]],
    instance: str,
    say: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
) -> AbstractContextManager[None]:
    """Sends the families in a thread, at the interval that the environment names.

    `instance`: names this process to the collector. `say` is called when sending begins to fail.

    Raises:
        SetupError: a collector is named, but the libraries are missing, or a variable is wrong.
    """
    endpoint = next((environ[name] for name in ENDPOINTS if environ.get(name)), None)
    if endpoint is None or environ.get("OTEL_SDK_DISABLED") == "true" or environ.get("OTEL_METRICS_EXPORTER") == "none":
        return nullcontext()
    try:
        from millpond.service.server.metrics.otel_export import running
    except ModuleNotFoundError as error:
        what = f"{ENDPOINTS[1]} is set, but the libraries of OpenTelemetry are missing: {error}."
        raise SetupError(what, f"Run `{install('otel')}`, or unset the variable.") from error
    given = environ.get(INTERVAL) or str(_INTERVAL_MS)
    if not given.isdecimal() or not int(given):
        raise SetupError(f"{INTERVAL} is {given!r}.", "Give a number of milliseconds.")
    return running(families, instance, int(given) / 1e3, endpoint, say)
