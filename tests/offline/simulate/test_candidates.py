"""Tests for L{admission.offline.simulate.candidates} and its clock."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from admission.interfaces import IPurgatoryFactory, IQuotaPolicyFactory, PolicyContext
from admission.offline.simulate.candidates import Candidate, resolveCandidate, resolveCandidates
from admission.plugins import PolicyError, PolicyFactory, implementationOf
from admission.testing.scriptedquota import ScriptedQuota


@implementer(IQuotaPolicyFactory)
class ScriptedFactory:
    """A factory that is no L{PolicyFactory}."""

    name = "scripted"
    help = "Says what it is told to."
    format = "scripted:DELAY"

    def build(self, context: PolicyContext, delay: str) -> ScriptedQuota:
        """Make a policy that throttles everybody."""
        return ScriptedQuota(delaySeconds=float(delay))


@implementer(IQuotaPolicyFactory)
class PeculiarFactory(ScriptedFactory):
    """A factory that not everybody can make."""

    def __init__(self, secret: str) -> None:
        self.secret = secret


class ResolveTests(SynchronousTestCase):
    """L{resolveCandidate} finds what a description means."""

    def test_label(self) -> None:
        """A candidate is called as its description, or by the word before it and an equals sign."""
        plain = resolveCandidate("client-bytes:produce=4M:windows=5")
        self.assertEqual(plain.label, "client-bytes:produce=4M:windows=5")
        labelled = resolveCandidate("more room=client-bytes:produce=4M")
        self.assertEqual(
            (labelled.label, labelled.name, labelled.description, labelled.kwargs),
            ("more room", "client-bytes", "client-bytes:produce=4M", {"produce": "4M"}),
        )

    def test_sameLabel(self) -> None:
        """Two candidates of the same label are refused."""
        error = self.assertRaises(PolicyError, resolveCandidates, ["a=client-bytes", "b=connections", "a=connections"])
        self.assertEqual(str(error), "two candidates are called 'a'; write another label and = before one of them")

    def test_wrong(self) -> None:
        """What is no description of an installed policy is refused in words."""
        for text, complaint in [
            ("client-byte:produce=4M", "no quota policy is called 'client-byte'"),
            ("client-bytes:prodce=4M", "client-bytes has no argument 'prodce'; expected client-bytes"),
            ("x=", "must begin with the name of a policy"),
        ]:
            self.assertIn(complaint, str(self.assertRaises(PolicyError, resolveCandidate, text)))


class BuildTests(SynchronousTestCase):
    """L{Candidate.build} makes policies anywhere."""

    def test_withoutPlugins(self) -> None:
        """A process that gets a pickled candidate builds it without having looked for plug-ins."""
        pickled = pickle.dumps(resolveCandidate("client-bytes:produce=4M"))
        program = (
            "import pickle, sys, twisted.plugin\n"
            "from admission import plugins\n"
            "plugins.listFactories = plugins.findFactory = twisted.plugin.getCache = None\n"
            "from twisted.internet.task import Clock\n"
            f"policy = pickle.loads({pickled!r}).build(Clock(), 5, 2.0)\n"
            "assert 'twisted.internet.reactor' not in sys.modules\n"
            "print(policy.horizonSeconds, *[value for limits in policy.limits.values() for value in limits.values()])"
        )
        output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
        self.assertEqual((output.stdout, output.stderr), ("12.0 4000000.0\n", ""))

    def test_wrongArgument(self) -> None:
        """An argument that makes no sense is refused by the candidate's label."""
        candidate = resolveCandidate("mine=client-bytes:produce=fast")
        error = self.assertRaises(PolicyError, candidate.build, Clock())
        self.assertTrue(str(error).startswith("'mine': 'fast' is not a rate"), str(error))

    def test_notThere(self) -> None:
        """What cannot be imported is named, with what to do about it."""
        error = self.assertRaises(PolicyError, Candidate("a", "b", "b", "absent_package.build").build, Clock())
        self.assertIn("'a' needs absent_package.build, which cannot be imported here", str(error))
        self.assertIn("install its package wherever the replay runs", str(error))

    def test_otherFactory(self) -> None:
        """A factory that is a class of its own is made anew where it is needed."""
        implementation = implementationOf(ScriptedFactory())
        self.assertEqual(implementation, f"{__name__}.ScriptedFactory")
        policy: Any = Candidate("a", "scripted", "scripted:2", implementation, ("2",)).build(Clock())
        self.assertEqual(policy.delaySeconds, 2.0)

    def test_implementation(self) -> None:
        """A L{PolicyFactory} is built by the function that it names."""
        factory = PolicyFactory(IPurgatoryFactory, "n", "h", "n", "some.where.build")
        self.assertEqual(implementationOf(factory), "some.where.build")

    def test_peculiarFactory(self) -> None:
        """A factory that cannot be made by its name alone is refused."""

        class LocalFactory(ScriptedFactory):
            """A factory that has no full name."""

        for factory in (PeculiarFactory("x"), LocalFactory()):
            error = self.assertRaises(PolicyError, implementationOf, factory)
            self.assertIn("provide it as an admission.plugins.PolicyFactory", str(error))
