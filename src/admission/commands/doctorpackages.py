# -*- test-case-name: tests.system.test_doctor -*-
"""
What the doctor looks at: the distributions that are installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from .findings import Finding, Level

EXTRAS = ("consumer", "spark")
"""Extras that operators may want; tests and linters are none."""


def checkPackages(requirements: Iterable[str], installed: Callable[[str], str | None]) -> Finding:
    """
    Whether what we need is there, in versions that we know.

    @param requirements: ours, as the metadata has them.
    @param installed: the version of a distribution; L{None} if it is not there.
    """
    found, wrong = _compare(requirements, installed, "")
    if not found and not wrong:
        return Finding("packages", Level.WARN, "admission itself is not installed", "pip install admission")
    if wrong:
        return Finding(
            "packages", Level.FAIL, "; ".join(wrong), "pip install --upgrade admission, in a venv of its own"
        )
    return Finding("packages", Level.OK, ", ".join(found))


def checkExtra(extra: str, requirements: Iterable[str], installed: Callable[[str], str | None]) -> Finding:
    """
    The same for an extra, which need not be there.
    """
    name, remedy = f"extra {extra}", f"pip install 'admission[{extra}]'"
    found, wrong = _compare(requirements, installed, extra)
    if not wrong:
        return Finding(name, Level.OK, ", ".join(found))
    if not found and all(each.endswith(_MISSING) for each in wrong):
        return Finding(name, Level.ABSENT, "not installed", remedy)
    return Finding(name, Level.WARN, "; ".join(wrong), remedy)


def ownRequirements() -> list[str]:
    """
    What our metadata says; nothing if we run from a tree that is not installed.
    """
    try:
        return requires("admission") or []
    except PackageNotFoundError:
        return []


def installedVersion(name: str) -> str | None:
    """
    The version of a distribution; L{None} if it is not installed.
    """
    try:
        return version(name)
    except PackageNotFoundError:
        return None


_MISSING = " is not installed"


def _compare(
    requirements: Iterable[str], installed: Callable[[str], str | None], extra: str
) -> tuple[list[str], list[str]]:
    """
    @param extra: whose requirements to look at; empty for those that we always have.
    @return: what is as it should be, and what is not.
    """
    found, wrong = [], []
    for each in map(Requirement, requirements):
        isExtra = each.marker is not None and not each.marker.evaluate({"extra": ""})
        if isExtra != bool(extra) or (each.marker is not None and not each.marker.evaluate({"extra": extra})):
            continue
        there = installed(each.name)
        if there is None:
            wrong.append(f"{each.name}{_MISSING}")
        elif not each.specifier.contains(there, prereleases=True):
            wrong.append(f"{each.name} {there} is not {each.specifier}")
        else:
            found.append(f"{each.name} {there}")
    return found, wrong
