# -*- test-case-name: tests.offline.simulate.test_candidates -*-
"""
Policies to try on a trace, in a form that other machines can build.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Any

from attrs import field, frozen
from twisted.python.reflect import namedAny

from admission.interfaces import IPolicyFactory, IQuotaPolicyFactory, PolicyContext
from admission.plugins import PolicyError, checkPolicy, findFactory, implementationOf, parseDescription
from admission.quotas.policy import enforceShare

_LABELLED = re.compile(r"([^:=\\]+)=(.*)", re.DOTALL)


@frozen
class Candidate:
    """
    A policy whose plug-in has been found and which is not built yet.  It can be pickled, and built where no plug-ins
    are installed as long as their modules can be imported.

    @ivar label: its name in results.
    @ivar name: the name of its plug-in; it replaces the recorded policies of that name.
    @ivar description: its description, as given.
    @ivar implementation: see L{admission.plugins.implementationOf}.
    @ivar args: the positional arguments of the description.
    @ivar kwargs: its keyword arguments.
    """

    label: str
    name: str
    description: str
    implementation: str
    args: Sequence[str] = ()
    kwargs: Mapping[str, str] = field(factory=dict, hash=False)

    def build(
        self,
        clock: Any,
        quotaWindows: int = 11,
        quotaWindowSeconds: float = 1.0,
        random: Random | None = None,
        wallOffsetSeconds: float = 0.0,
        limitShare: float = 1.0,
    ) -> Any:
        """
        Make the policy.

        @param clock: an L{twisted.internet.interfaces.IReactorTime}.
        @param quotaWindows: see L{PolicyContext}, also for the next two.
        @param wallOffsetSeconds: added to the time of C{clock} to get wall time.
        @param limitShare: how much of its limits a quota policy enforces.
        @raise PolicyError: if its arguments are invalid, or it cannot be imported here.
        """
        try:
            found = namedAny(self.implementation)  # type: ignore[no-untyped-call]
        except Exception as error:
            raise PolicyError(
                f"{self.label!r} needs {self.implementation}, which cannot be imported here ({error}); "
                "install its package wherever the replay runs"
            ) from error
        build = found().build if IPolicyFactory.implementedBy(found) else found
        context = PolicyContext(
            clock, lambda: clock.seconds() + wallOffsetSeconds, None, quotaWindows, quotaWindowSeconds, random
        )
        try:
            policy = build(context, *self.args, **self.kwargs)
            if limitShare != 1.0:
                enforceShare(policy, limitShare, clock.seconds())
            return policy
        except ValueError as error:
            raise PolicyError(f"{self.label!r}: {error}") from error


def resolveCandidate(text: str, interface: type[IPolicyFactory] = IQuotaPolicyFactory) -> Candidate:
    """
    Find the installed plug-in that C{text} describes.

    @param text: a description such as C{client-bytes:produce=4M}, optionally with a label and an equals sign before it:
        C{generous=client-bytes:produce=4M}.
    @param interface: the kind of factory.
    @raise PolicyError: if the description is wrong in any way that can be found without building the policy.
    """
    labelled = _LABELLED.fullmatch(text)
    label, description = labelled.groups() if labelled else (text, text)
    checkPolicy(interface, description)
    name, args, kwargs = parseDescription(description)
    implementation = implementationOf(findFactory(interface, name).factory)
    return Candidate(label.strip(), name, description, implementation, args, kwargs)


def resolveCandidates(texts: Collection[str]) -> list[Candidate]:
    """
    Find the plug-ins of several quota policies, see L{resolveCandidate}.

    @raise PolicyError: also if two have the same label.
    """
    candidates = [resolveCandidate(text) for text in texts]
    labels = [candidate.label for candidate in candidates]
    for label in labels:
        if labels.count(label) > 1:
            raise PolicyError(f"two candidates are called {label!r}; write another label and = before one of them")
    return candidates
