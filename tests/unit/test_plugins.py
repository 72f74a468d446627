"""Tests for L{admission.plugins}."""

from __future__ import annotations

import os
import sys
import textwrap
from importlib import metadata
from io import StringIO
from pathlib import Path
from typing import Any

import twisted.plugins
from hypothesis import assume, given, strategies as st
from twisted.internet.endpoints import _parse
from twisted.internet.interfaces import ISSLTransport, ITransport
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.plugin import IPlugin, getPlugins
from twisted.python.components import globalRegistry
from twisted.python.usage import Options, UsageError
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import directlyProvides, implementer
from zope.interface.verify import verifyObject

from admission import plugins
from admission.interfaces import (
    IMemoryPool,
    IMemoryPoolFactory,
    IPolicyFactory,
    IQuotaPolicy,
    IQuotaPolicyFactory,
    ITransportMutability,
    PolicyContext,
)
from admission.plugins import (
    PolicyError,
    PolicyFactory,
    PolicyKind,
    PolicyOptionsMixin,
    buildPolicy,
    checkPolicy,
    findFactory,
    listFactories,
    parseDescription,
    registerTransportAdapters,
)
from admission.quotas.policy import QuotaPolicy
from admission.testing.scriptedquota import ScriptedQuota

CONTEXT = PolicyContext(Clock(), lambda: 0.0)


class ILoudSpeakerFactory(IPolicyFactory):
    """A kind of policy that nobody but these tests has."""


class IEarPlugFactory(IPolicyFactory):
    """Another one."""


def buildEcho(context: PolicyContext, amount: str, unit: str = "B", flavour: str | None = None) -> tuple[Any, ...]:
    """An implementation that shows what it was built with."""
    if not amount.isdigit():
        raise ValueError(f"{amount!r} is not an amount")
    return context, amount, unit, flavour


THREE = 3


def buildNothing() -> None:
    """An implementation that has no place for the context."""


def buildSize(size: str) -> None:
    """Another one."""


def buildAbbreviated(c: PolicyContext, size: str) -> None:
    """One that has."""


@implementer(IQuotaPolicy)
class Half:
    """Says that it is a policy, and lacks most of one."""

    isShadow = False


class Unfinished(QuotaPolicy):
    """A policy whose author has yet to write its methods."""


def echoFactory(name: str = "echo", kind: type[IPolicyFactory] = ILoudSpeakerFactory) -> PolicyFactory:
    return PolicyFactory(
        kind,
        name=name,
        help="Says what it heard.\n\nTwice.",
        format=f"{name}:AMOUNT[:UNIT][:flavour=WORD]",
        implementation=f"{__name__}.buildEcho",
    )


class ParseDescriptionTests(SynchronousTestCase):
    """L{parseDescription} follows the grammar of Twisted's endpoints."""

    def test_arguments(self) -> None:
        """Colons separate, an equals sign makes a keyword, a backslash quotes."""
        self.assertEqual(parseDescription("name"), ("name", [], {}))
        self.assertEqual(parseDescription("name:1:b=2:3"), ("name", ["1", "3"], {"b": "2"}))
        self.assertEqual(parseDescription("n:a\\:b:c\\=d:e=f=g\\\\"), ("n", ["a:b", "c=d"], {"e": "f=g\\"}))
        self.assertEqual(parseDescription("name::a="), ("name", [""], {"a": ""}))

    def test_refused(self) -> None:
        """
        No name, a keyword given twice and a backslash at the end are refused
        in a sentence that quotes the description.
        """
        for description, complaint in [
            ("", "must begin with the name"),
            (":1", "must begin with the name"),
            ("size=1", "must begin with the name"),
            ("name:a=1:a=2", "gives a twice"),
            ("name:\\", "ends in a backslash"),
        ]:
            message = str(self.assertRaises(PolicyError, parseDescription, description))
            self.assertTrue(message.startswith(repr(description)), message)
            self.assertIn(complaint, message)

    @given(st.text(alphabet="ab:=\\ é", max_size=20))
    def test_agreesWithTwisted(self, text: str) -> None:
        """
        Whatever Twisted can parse is parsed to the same, except for a keyword
        that comes twice, where Twisted takes the last.
        """
        try:
            args, kwargs = _parse(text)
        except (RuntimeError, UnicodeError):
            assume(False)  # a backslash at the end, a keyword that is not ASCII
        try:
            name, positional, keywords = parseDescription("name:" + text)
        except PolicyError as error:
            self.assertIn("twice", str(error))
        else:
            self.assertEqual((name, positional, keywords), ("name", args, kwargs))


class PolicyFactoryTests(SynchronousTestCase):
    """L{PolicyFactory} stands for a policy without importing it."""

    def test_interfaces(self) -> None:
        """It provides the interface of its kind, and L{IPlugin}."""
        factory = echoFactory(kind=IEarPlugFactory)
        verifyObject(IEarPlugFactory, factory)
        self.assertTrue(IPlugin.providedBy(factory))
        self.assertFalse(IMemoryPoolFactory.providedBy(factory))

    def test_build(self) -> None:
        """Its implementation gets the context and the arguments."""
        self.assertEqual(echoFactory().build(CONTEXT, "1", flavour="mint"), (CONTEXT, "1", "B", "mint"))

    def test_lazy(self) -> None:
        """Making and listing it does not import the implementation."""
        factory = PolicyFactory(IEarPlugFactory, "x", "", "x", "no_such_module.build")
        self.assertEqual(factory.name, "x")
        self.assertRaises(ModuleNotFoundError, factory.resolve)

    def test_mistakes(self) -> None:
        """A kind, a name and an implementation that cannot be one are refused with what to write."""
        for kwargs, words in (
            ({"kind": IQuotaPolicy}, "IQuotaPolicy> is no interface of factories; write one of IMemoryPoolFactory, "),
            ({"kind": QuotaPolicy}, "QuotaPolicy'> is no interface of factories; write one of IMemoryPoolFactory, "),
            ({"kind": IPolicyFactory}, "IPolicyFactory> is no interface of factories; write one of "),
            ({"name": "a:b"}, "name='a:b': write a word without colons, equals signs and backslashes"),
            ({"name": "a=b"}, "name='a=b': write a word without colons"),
            ({"name": ""}, "name='': write a word"),
            ({"name": None}, "name=None: write a word"),
            ({"implementation": buildEcho}, "write its dotted name, such as 'acme.policies.buildLimit'"),
        ):
            good: dict[str, Any] = {
                "kind": ILoudSpeakerFactory,
                "name": "x",
                "help": "",
                "format": "x",
                "implementation": "x.build",
            }
            self.assertIn(words, str(self.assertRaises(ValueError, PolicyFactory, **{**good, **kwargs})))


class FakeEntryPoint:
    """An entry point of a distribution that is not installed."""

    def __init__(self, name: str, loaded: Any) -> None:
        self.name = name
        self.value = f"{name}.policies:factory"
        self.dist = None
        self._loaded = loaded

    def load(self) -> Any:
        """Return the object, or raise it."""
        if isinstance(self._loaded, Exception):
            raise self._loaded
        return self._loaded


class InstalledTestCase(SynchronousTestCase):
    """Lets tests install drop-ins and entry points."""

    def setUp(self) -> None:
        self.entryPoints()
        self.logged: list[str] = []
        self.patch(plugins, "_log", self)

    def warn(self, format: str, **values: Any) -> None:
        """Stand in for the module's logger."""
        self.logged.append(format.format(**values))

    def entryPoints(self, *entries: FakeEntryPoint) -> None:
        """Have these be the entry points of our group."""

        def find(group: str) -> tuple[FakeEntryPoint, ...]:
            self.assertEqual(group, "admission.policies")
            return entries

        self.patch(plugins, "entry_points", find)
        self.patch(plugins, "_named", {})
        self.patch(plugins, "_loaded", {})

    def dropin(self, name: str, source: str) -> None:
        """Put a module into a C{twisted/plugins} directory of its own."""
        directory = Path(self.mktemp()).absolute()
        directory.mkdir()
        directory.joinpath(f"{name}.py").write_text(textwrap.dedent(source))
        self.patch(twisted.plugins, "__path__", [*twisted.plugins.__path__, str(directory)])
        self.addCleanup(sys.modules.pop, f"twisted.plugins.{name}", None)
        self.addCleanup(vars(twisted.plugins).pop, name, None)

    def echoDropin(self, module: str, name: str = "echo") -> None:
        """Install L{echoFactory} as a drop-in."""
        self.dropin(module, f"from tests.unit.test_plugins import echoFactory\nfactory = echoFactory({name!r})\n")


class ListFactoriesTests(InstalledTestCase):
    """L{listFactories} merges drop-ins and entry points."""

    def names(self, kind: type[IPolicyFactory] = ILoudSpeakerFactory) -> list[tuple[str, str]]:
        """What is installed, by name and provider."""
        return [(each.name, each.providedBy) for each in listFactories(kind)]

    def test_defaults(self) -> None:
        """The default pools are found, and C{getPlugins} finds them as well."""
        module = "twisted.plugins.admission_policies"
        self.assertLessEqual({("bounded", module), ("unbounded", module)}, set(self.names(IMemoryPoolFactory)))
        self.assertLessEqual({"bounded", "fair", "unbounded"}, {each.name for each in getPlugins(IMemoryPoolFactory)})

    def test_dropin(self) -> None:
        """A third party's drop-in is listed with its module, under its kind only."""
        self.echoDropin("acme_dropin")
        self.assertIn(("echo", "twisted.plugins.acme_dropin"), self.names())
        self.assertNotIn("echo", [name for name, _ in self.names(IEarPlugFactory)])

    def test_entryPoint(self) -> None:
        """An entry point is listed with what it points to, under its kind only."""
        self.entryPoints(FakeEntryPoint("acme", echoFactory()))
        self.assertIn(("echo", "entry point acme (acme.policies:factory)"), self.names())
        self.assertNotIn("echo", [name for name, _ in self.names(IEarPlugFactory)])

    def test_distributionIsNamed(self) -> None:
        """The provider of a real entry point names the distribution."""
        directory = Path(self.mktemp())
        information = directory / "acme-1.0.dist-info"
        information.mkdir(parents=True)
        information.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
        information.joinpath("entry_points.txt").write_text(
            "[admission.policies]\necho = tests.unit.test_plugins:INSTALLED\n"
        )
        self.patch(sys, "path", [str(directory), *sys.path])
        self.patch(plugins, "entry_points", metadata.entry_points)
        self.patch(plugins, "_named", {})
        self.assertIn(("installed", "entry point echo (tests.unit.test_plugins:INSTALLED) of acme"), self.names())

    def test_readOnce(self) -> None:
        """What distributions name is read again only when something was installed or removed."""
        directory = Path(self.mktemp()).absolute()
        directory.mkdir()
        os.utime(directory, (1.0, 1.0))
        self.patch(sys, "path", [str(directory), *sys.path])
        reads: list[str] = []

        def find(group: str) -> tuple[FakeEntryPoint, ...]:
            reads.append(group)
            return (FakeEntryPoint("acme", echoFactory()),)

        self.patch(plugins, "entry_points", find)
        for _ in range(3):
            self.assertIn("echo", [name for name, _ in self.names()])
        self.assertEqual(len(reads), 1)
        os.utime(directory, (2.0, 2.0))
        self.names()
        self.assertEqual(len(reads), 2)

    def test_sameObjectTwice(self) -> None:
        """One factory found in two ways is one factory."""
        factory = echoFactory()
        self.entryPoints(FakeEntryPoint("one", factory), FakeEntryPoint("two", factory))
        self.assertEqual([name for name, _ in self.names() if name == "echo"], ["echo"])

    def test_brokenEntryPoint(self) -> None:
        """
        An entry point that cannot be loaded or names no factory is left out, as the log and a user who asks for a
        policy that is not there are told; the others are there.
        """
        nameless, remedy = echoFactory("bad"), "which is no factory; name an admission.PolicyFactory"
        del nameless.format
        for named, reason in (
            (ImportError("no module named acme"), "ImportError: no module named acme"),
            (nameless, "AttributeError: 'PolicyFactory' object has no attribute 'format'"),
            (plugins, f"it names the module admission.plugins, {remedy}"),
            (echoFactory, f"it names a function, {remedy}"),
            ("x", f"it names a str, {remedy}"),
        ):
            self.entryPoints(FakeEntryPoint("bad", named), FakeEntryPoint("ok", echoFactory()))
            sentence = f"entry point bad (bad.policies:factory) cannot be used and is left out: {reason}"
            names = [name for name, _ in self.names()]
            self.assertEqual(("bad" in names, "echo" in names), (False, True))
            self.assertEqual(self.logged.pop(), sentence)
            error = self.assertRaises(PolicyError, findFactory, ILoudSpeakerFactory, "bad")
            self.assertTrue(str(error).endswith(sentence), error)

    def test_moduleOfItsName(self) -> None:
        """A factory that has the name of the module that implements it is found as often as it is looked for."""
        directory = Path(self.mktemp()).absolute()
        package, information = directory / "acme_echo", directory / "acme_echo-1.0.dist-info"
        for each in (package, information):
            each.mkdir(parents=True)
        information.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: acme-echo\nVersion: 1.0\n")
        information.joinpath("entry_points.txt").write_text("[admission.policies]\necho = acme_echo:unbounded2\n")
        package.joinpath("__init__.py").write_text(
            "from admission import IMemoryPoolFactory, PolicyFactory\n"
            "unbounded2 = PolicyFactory(\n"
            "    IMemoryPoolFactory, 'unbounded2', 'As it says.', 'unbounded2', 'acme_echo.unbounded2.build')\n"
        )
        package.joinpath("unbounded2.py").write_text(
            "from admission_plugins.bounded import buildUnbounded\ndef build(context): return buildUnbounded(context)\n"
        )
        self.patch(sys, "path", [str(directory), *sys.path])
        self.addCleanup(lambda: [sys.modules.pop(name, None) for name in ("acme_echo", "acme_echo.unbounded2")])
        self.patch(plugins, "entry_points", metadata.entry_points)
        self.patch(plugins, "_named", {})
        for _ in range(3):
            pool = buildPolicy(IMemoryPoolFactory, "unbounded2", PolicyContext(Clock(), lambda: 0.0))
            self.assertTrue(IMemoryPool.providedBy(pool))
        self.assertEqual(self.logged, [])

    def test_brokenDropin(self) -> None:
        """
        A drop-in that cannot be imported is left out, and the log and a user who asks for a policy that is not there
        are told why, beside Twisted's traceback; the others are there.
        """
        for number, (source, reason) in enumerate(
            (
                ("raise RuntimeError('broken')", "RuntimeError: broken"),
                ("raise SystemExit('broken')", "SystemExit: broken"),
                ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
                (
                    "from tests.unit.test_plugins import echoFactory\nmine = echoFactory('a:b')",
                    "ValueError: name='a:b': write a word without colons, equals signs and backslashes",
                ),
            )
        ):
            self.dropin(f"broken_dropin{number}", source)
            sentence = f"twisted.plugins.broken_dropin{number} cannot be used and is left out: {reason}"
            self.names()
            self.assertIn(sentence, self.logged)
            error = self.assertRaises(PolicyError, findFactory, ILoudSpeakerFactory, "mine")
            self.assertIn(sentence, str(error))
        self.echoDropin("acme_dropin")
        self.assertIn("echo", [name for name, _ in self.names()])
        self.assertNotEqual(self.flushLoggedErrors(RuntimeError, SystemExit, ImportError, ValueError), [])

    def test_noKind(self) -> None:
        """What is no interface of factories is refused, wherever it is asked for."""
        for kind in (IQuotaPolicy, QuotaPolicy, IPolicyFactory, "quota"):
            for use in (listFactories, lambda kind: buildPolicy(kind, "x", CONTEXT)):
                self.assertIn("is no interface of factories", str(self.assertRaises(ValueError, use, kind)))

    def test_dropinThatBrokeSince(self) -> None:
        """A drop-in that lacks what Twisted's cache says it has is left out, and the log says so."""
        self.echoDropin("fickle_dropin")
        self.names()
        del vars(sys.modules["twisted.plugins.fickle_dropin"])["factory"]
        self.assertNotIn("echo", [name for name, _ in self.names()])
        self.assertIn("twisted.plugins.fickle_dropin cannot be used and is left out", self.logged[0])


class BuildPolicyTests(InstalledTestCase):
    """L{buildPolicy} makes policies and explains what is wrong with a description."""

    def setUp(self) -> None:
        super().setUp()
        self.entryPoints(FakeEntryPoint("acme", echoFactory()))

    def refusal(self, description: str) -> str:
        """The message with which C{description} is refused."""
        return str(self.assertRaises(PolicyError, buildPolicy, ILoudSpeakerFactory, description, CONTEXT))

    def test_built(self) -> None:
        """Arguments arrive as strings after the context."""
        self.assertEqual(buildPolicy(ILoudSpeakerFactory, "echo:5:flavour=a\\:b", CONTEXT), (CONTEXT, "5", "B", "a:b"))

    def test_badArguments(self) -> None:
        """Arguments of a wrong number, name or value are each explained in one sentence that quotes the description."""
        form = "; expected echo:AMOUNT[:UNIT][:flavour=WORD]"
        for description, complaint in [
            ("echo", "missing a required argument: 'amount'"),
            ("echo:1:2:3:4", "too many positional arguments"),
            ("echo:1:colour=red", "echo has no argument 'colour'"),
            ("echo:1:context=2", "multiple values for argument 'context'"),
        ]:
            self.assertEqual(self.refusal(description), f"{description!r}: {complaint}{form}")
        self.assertEqual(self.refusal("echo:much"), "'echo:much': 'much' is not an amount")

    def test_unknownName(self) -> None:
        """An unknown name is answered with what is installed, be it nothing."""
        self.assertEqual(self.refusal("ekko:1"), "no loud speaker is called 'ekko'; installed: echo")
        self.entryPoints()
        self.assertTrue(self.refusal("echo:1").endswith("installed: nothing"))

    def test_twoProviders(self) -> None:
        """A name that two provide is refused, naming both."""
        self.echoDropin("acme_dropin")
        self.assertEqual(
            self.refusal("echo:1"),
            "'echo' is provided by twisted.plugins.acme_dropin and entry point acme (acme.policies:factory);"
            " uninstall all but one",
        )

    def test_twiceInOne(self) -> None:
        """A name that one module has twice is refused, naming it once."""
        self.dropin(
            "acme_dropin",
            "from tests.unit.test_plugins import echoFactory\none, two = echoFactory('two'), echoFactory('two')\n",
        )
        self.assertEqual(self.refusal("two:1"), "'two' is given twice in twisted.plugins.acme_dropin; keep one of them")

    def test_missingImplementation(self) -> None:
        """An implementation that cannot be imported or called is refused with its factory's provider and the reason."""
        for implementation, reason in (
            ("no_such_module.build", "ModuleNotFoundError: No module named 'no_such_module'"),
            (f"{__name__}.buildMuch", f"AttributeError: module '{__name__}' has no attribute 'buildMuch'"),
            (f"{__name__}.THREE", f"{__name__}.THREE is 3, and no function"),
            ("builtins.int", "ValueError: no signature found for builtin type <class 'int'>"),
        ):
            factory = PolicyFactory(ILoudSpeakerFactory, "lost", "", "lost", implementation)
            self.entryPoints(FakeEntryPoint("acme", factory))
            self.assertEqual(
                self.refusal("lost"),
                f"'lost': entry point acme (acme.policies:factory) cannot load its implementation: {reason}",
            )

    def test_noContext(self) -> None:
        """
        A function that has no place for the context is to blame, and not the description; one that has it under
        another name is not.
        """
        for build, description in (("buildNothing", "odd"), ("buildSize", "odd:5"), ("buildSize", "odd:size=5")):
            self.install(ILoudSpeakerFactory, build)
            self.assertEqual(
                self.refusal(description),
                f"{description!r}: {__name__}.{build} must take the PolicyContext first, before the arguments "
                "of odd[:SIZE]",
            )
        self.assertIn("too many positional arguments", self.refusal("odd:1:2"))
        self.install(ILoudSpeakerFactory, "buildAbbreviated")
        self.assertIn("too many positional arguments", self.refusal("odd:1:2"))

    def test_notBuilt(self) -> None:
        """An implementation that returns no policy of its kind is named, with what it returned."""
        remedy = "is no IQuotaPolicy; return an object of a class with @implementer(IQuotaPolicy)"
        for built, words in (
            (None, f"returned None, which {remedy}"),
            (5, f"returned an int, which {remedy}"),
            (ScriptedQuota, f"returned the class ScriptedQuota, which {remedy}"),
            (Half(), "returned a Half, which lacks "),
        ):
            self.patch(sys.modules[__name__], "buildNothing", lambda context, built=built: built)
            self.install(IQuotaPolicyFactory, "buildNothing")
            error = self.assertRaises(PolicyError, buildPolicy, IQuotaPolicyFactory, "odd", CONTEXT)
            self.assertIn(f"'odd': {__name__}.buildNothing {words}", str(error))
        self.assertIn("decide, ", str(error))
        self.assertNotIn("isShadow, ", str(error))

    def test_raising(self) -> None:
        """What an implementation raises, other than its refusal of an argument, is named and chained."""
        for raising, words in (
            (lambda context: {}["size"], "raised KeyError: 'size'"),
            (lambda context: sys.exit("no"), "raised SystemExit: no"),
            (lambda context: Unfinished(), "raised TypeError: Can't instantiate abstract class Unfinished "),
        ):
            self.patch(sys.modules[__name__], "buildNothing", raising)
            self.install(IQuotaPolicyFactory, "buildNothing")
            error = self.assertRaises(PolicyError, buildPolicy, IQuotaPolicyFactory, "odd", CONTEXT)
            self.assertIn(f"'odd': {__name__}.buildNothing {words}", str(error))
            self.assertIsInstance(error.__cause__, (KeyError, SystemExit, TypeError))

    def install(self, kind: type[IPolicyFactory], build: str) -> None:
        """Have one policy installed, C{odd}, which this function of this module builds."""
        implementation = f"{__name__}.{build}"
        self.entryPoints(FakeEntryPoint("acme", PolicyFactory(kind, "odd", "", "odd[:SIZE]", implementation)))

    def test_ownFactoryClass(self) -> None:
        """A factory need not be a L{PolicyFactory}: the parameters of its C{build} count."""

        class Own:
            name = "own"
            help = ""
            format = "own:SIZE"

            def build(self, context: PolicyContext, size: str) -> str:
                return size

        own = Own()
        directlyProvides(own, ILoudSpeakerFactory)
        self.entryPoints(FakeEntryPoint("own", own))
        self.assertEqual(buildPolicy(ILoudSpeakerFactory, "own:3", CONTEXT), "3")
        self.assertEqual(self.refusal("own"), "'own': missing a required argument: 'size'; expected own:SIZE")

    def test_checkOnly(self) -> None:
        """L{checkPolicy} finds a wrong form and builds nothing."""
        checkPolicy(ILoudSpeakerFactory, "echo:much")
        self.assertRaises(PolicyError, checkPolicy, ILoudSpeakerFactory, "echo")

    def test_findFactory(self) -> None:
        """L{findFactory} gives the factory with its texts."""
        found = findFactory(ILoudSpeakerFactory, "echo")
        self.assertEqual((found.name, found.format), ("echo", "echo:AMOUNT[:UNIT][:flavour=WORD]"))


class ExampleOptions(PolicyOptionsMixin, Options):
    """A command with one kind that is chosen once and one that may come often."""

    policyKinds = (PolicyKind("speaker", ILoudSpeakerFactory), PolicyKind("plug", IEarPlugFactory, repeatable=True))


class PolicyOptionsTests(InstalledTestCase):
    """L{PolicyOptionsMixin} adds three options for each kind."""

    def setUp(self) -> None:
        super().setUp()
        self.entryPoints(
            FakeEntryPoint("acme", echoFactory()), FakeEntryPoint("brand", echoFactory("slow", IEarPlugFactory))
        )
        self.output = StringIO()
        self.patch(sys, "stdout", self.output)

    def parse(self, *arguments: str) -> ExampleOptions:
        """The options after parsing C{arguments}."""
        options = ExampleOptions()
        options.parseOptions(arguments)
        return options

    def test_default(self) -> None:
        """Without the option the value is L{None}, or an empty list that is not shared."""
        options = self.parse()
        self.assertIs(options["speaker"], None)
        self.assertEqual(options["plug"], [])
        self.assertIsNot(options["plug"], self.parse()["plug"])

    def test_descriptions(self) -> None:
        """Descriptions are kept as written, those of a repeatable option in order."""
        options = self.parse("--speaker", "echo:1", "--plug=slow:1", "--plug", "slow:2:B")
        self.assertEqual(options["speaker"], "echo:1")
        self.assertEqual(options["plug"], ["slow:1", "slow:2:B"])

    def test_singleTwice(self) -> None:
        """An option that is not repeatable may come twice only with the same value."""
        self.assertEqual(self.parse("--speaker=echo:1", "--speaker=echo:1")["speaker"], "echo:1")
        error = self.assertRaises(UsageError, self.parse, "--speaker=echo:1", "--speaker=echo:2")
        self.assertEqual(str(error), "--speaker is given twice: 'echo:1' and 'echo:2'")

    def test_checked(self) -> None:
        """A description that cannot be right is refused while parsing."""
        error = self.assertRaises(UsageError, self.parse, "--speaker=ekko")
        self.assertEqual(str(error), "--speaker: no loud speaker is called 'ekko'; installed: echo")

    def test_list(self) -> None:
        """C{--help-speaker} shows name, format and provider of each and exits with success."""
        self.assertEqual(self.assertRaises(SystemExit, self.parse, "--help-speaker").code, 0)
        self.assertEqual(
            self.output.getvalue(),
            textwrap.dedent(
                """\
                Usage: --speaker NAME[:ARGUMENTS]
                For detailed help: --help-speaker-type NAME

                  Name  Format                             Provided by
                  ====  ======                             ===========
                  echo  echo:AMOUNT[:UNIT][:flavour=WORD]  entry point acme (acme.policies:factory)
                """
            ),
        )

    def test_listBroken(self) -> None:
        """What cannot be used is named with the reason, each in a line, whatever kind it was meant to be."""
        nameless = echoFactory("nameless")
        nameless.format = None  # type: ignore[assignment]
        self.entryPoints(
            FakeEntryPoint("bad", ImportError("no module\nnamed acme")),
            FakeEntryPoint("good", echoFactory()),
            FakeEntryPoint("worse", nameless),
        )
        for option, count in (("--help-speaker", 2), ("--help-plug", 1)):
            self.output.truncate(0)
            self.output.seek(0)
            self.assertEqual(self.assertRaises(SystemExit, self.parse, option).code, 0)
            listed = self.output.getvalue()
            reasons = [
                "entry point bad (bad.policies:factory) cannot be used and is left out: ImportError: no module\\nnamed "
                "acme\n",
                "entry point worse (worse.policies:factory) cannot be used and is left out: its name, format and help "
                "are not all texts\n",
            ]
            self.assertTrue(listed.endswith("\n" + "\n".join(reasons[:count])), listed)

    def test_explain(self) -> None:
        """C{--help-plug-type} shows the long help of one and exits with success."""
        self.assertEqual(self.assertRaises(SystemExit, self.parse, "--help-plug-type", "slow").code, 0)
        self.assertEqual(
            self.output.getvalue(),
            textwrap.dedent(
                """\
                Usage: --plug slow:AMOUNT[:UNIT][:flavour=WORD]
                Provided by: entry point brand (brand.policies:factory)

                  Says what it heard.

                  Twice.
                """
            ),
        )

    def test_explainUnknown(self) -> None:
        """Asking for help on what is not installed lists what is."""
        error = self.assertRaises(UsageError, self.parse, "--help-plug-type", "fast")
        self.assertEqual(str(error), "--help-plug-type: no ear plug is called 'fast'; installed: slow")

    def test_usage(self) -> None:
        """C{--help} explains all three options."""
        usage = " ".join(str(ExampleOptions()).split())
        self.assertIn("--speaker= The loud speaker to use, as NAME[:ARGUMENTS]; see --help-speaker.", usage)
        self.assertIn("see --help-plug. May be given several times.", usage)
        self.assertIn("--help-plug List every installed ear plug and exit.", usage)
        self.assertIn("--help-plug-type= Explain one ear plug and exit.", usage)


class TransportAdaptersTests(SynchronousTestCase):
    """L{registerTransportAdapters} makes Twisted's transports mutable."""

    def test_registers(self) -> None:
        """A transport that had no adapter has one afterwards."""
        for interface in (ITransport, ISSLTransport):
            globalRegistry.unregister([interface], ITransportMutability, "")
        transport = StringTransport()
        self.assertIs(ITransportMutability(transport, None), None)
        registerTransportAdapters()
        ITransportMutability(transport).mute()
        self.assertEqual(transport.producerState, "paused")


INSTALLED = echoFactory("installed")
