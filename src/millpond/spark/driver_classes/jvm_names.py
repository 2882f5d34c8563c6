"""Remembers classes, static methods and packages of the JVM that py4j has found by name.

PySpark looks up `jvm.PythonUtils`, `jvm.py4j.reflection.TypeUtil` or `functions.col` again for each call. Each lookup
is a round trip, and the JVM searches the names of packages, and of classes that PySpark imports by `*`, in all of
Spark's 300 jars.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView
from pyspark.sql import SparkSession

_STABLE = ("java", "org", "py4j", "scala")
"""Where packages are remembered. py4j takes each unknown name for a package, even a class whose jar comes later."""


_KEY = "_millpond_classes"


def class_named(client: Any, name: str) -> Any:
    """A class of the JVM by its full name; `jvm.org.apache…` would look for a class in 300 jars for each part of it."""
    known = client.__dict__.setdefault(_KEY, {})
    if name not in known:
        known[name] = _Class(name, client)
    return known[name]


def remember_names(spark: SparkSession) -> None:
    """From now on, look up each name in the JVM of a session only once; a JVM whose names are remembered stays so."""
    view = spark._jvm
    if type(view) is JVMView:
        view.__class__ = _View


class _View(JVMView):  # type: ignore[misc]
    """The top-level names of a JVM."""

    def __getattr__(self, name: str) -> Any:
        return _remembered(self, name, super().__getattr__(name))


class _Package(JavaPackage):  # type: ignore[misc]
    """The names in a package."""

    def __getattr__(self, name: str) -> Any:
        return _remembered(self, name, super().__getattr__(name))


class _Class(JavaClass):  # type: ignore[misc]
    """The static members of a class; the values of its fields are read anew."""

    def __getattr__(self, name: str) -> Any:
        return _remembered(self, name, super().__getattr__(name))


def _remembered(owner: Any, name: str, found: Any) -> Any:
    if type(found) is JavaClass:
        found.__class__ = _Class
    elif type(found) is JavaPackage and found._fqn.islower() and found._fqn.split(".")[0] in _STABLE:
        found.__class__ = _Package
    elif type(found) is not JavaMember:
        return found
    owner.__dict__[name] = found
    return found
