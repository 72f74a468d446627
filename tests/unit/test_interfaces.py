"""The contracts."""

from __future__ import annotations

import os
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase
from zope.interface import Interface
from zope.interface.interface import InterfaceClass

from admission import interfaces
from admission.interfaces import Decision, IPolicyFactory, PolicyContext, Usage

CONTRACTS = [each for each in vars(interfaces).values() if isinstance(each, InterfaceClass) and each is not Interface]


class ContractTests(SynchronousTestCase):
    """What all interfaces have in common."""

    def test_everythingIsDocumented(self) -> None:
        """Every interface, method and attribute says what it is."""
        self.assertTrue(CONTRACTS)
        bare = [each.__name__ for each in CONTRACTS if not each.__doc__]
        bare += [
            f"{each.__name__}.{name}"
            for each in CONTRACTS
            for name, description in each.namesAndDescriptions()
            if not description.__doc__
        ]
        self.assertEqual(bare, [])

    def test_factoriesShareABase(self) -> None:
        """Every kind of factory is an L{IPolicyFactory}, so that one function builds them all."""
        factories = [each for each in CONTRACTS if each.__name__.endswith("Factory") and each is not IPolicyFactory]
        self.assertEqual(len(factories), 6)
        for each in factories:
            self.assertTrue(each.isOrExtends(IPolicyFactory), each.__name__)

    def test_importIsLight(self) -> None:
        """
        Importing the contracts, as every Twisted command does once we are
        installed, neither installs a reactor nor loads more of ours than the empty front door.
        """
        program = (
            "import sys, admission.interfaces\n"
            "print(*sorted(name for name in sys.modules if name.startswith(('admission.', 'twisted.internet'))))"
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        loaded = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300, check=True
        ).stdout.split()
        self.assertEqual(
            loaded, ["admission._version", "admission.extras", "admission.interfaces", "admission.lazynames"]
        )


class ValueTests(SynchronousTestCase):
    """L{Request}, L{Usage}, L{Decision} and L{PolicyContext}."""

    def test_valuesStay(self) -> None:
        """What a policy is given it cannot change."""
        for value, name in [(Usage(), "requestBytes"), (Decision(), "admitted"), (PolicyContext(None, float), "clock")]:
            self.assertRaises(AttributeError, setattr, value, name, 1)

    def test_admittedUnlessSaid(self) -> None:
        """A decision admits without delay unless it says otherwise."""
        self.assertEqual(Decision(), Decision(admitted=True, delaySeconds=0.0, reason=""))
