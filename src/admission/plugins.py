# -*- test-case-name: tests.unit.test_plugins -*-
"""
How a description such as C{"bounded:64MiB:strict=yes"} becomes a policy: its
grammar, the installed factories, building, and the options with which a
command offers all that (L{PolicyOptionsMixin}).

Drop-ins import this module, and any Twisted command may import the drop-ins,
so it imports nothing heavy and never touches the reactor.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, ClassVar, Final

from attrs import define, frozen
from twisted import plugins
from twisted.logger import Logger
from twisted.plugin import IPlugin, getCache, getPlugins
from twisted.python.modules import getModule
from twisted.python.reflect import ObjectNotFound, namedAny, safe_str
from twisted.python.usage import Options, UsageError
from zope.interface import alsoProvides, implementer
from zope.interface.interface import InterfaceClass

from .extras import explaining
from .interfaces import (
    IMemoryPool,
    IMemoryPoolFactory,
    IMetricsExporter,
    IMetricsExporterFactory,
    IPolicyFactory,
    IPurgatory,
    IPurgatoryFactory,
    IQuotaPolicy,
    IQuotaPolicyFactory,
    ITransportAdapters,
    IUsageExchange,
    IUsageExchangeFactory,
    IWaitOrder,
    IWaitOrderFactory,
    PolicyContext,
)
from .plaintext import printable, table
from .policyfailure import FAILURES, raiseInterrupt

ENTRY_POINT_GROUP = "admission.policies"
"""Where distributions that cannot ship a drop-in name their factories."""

_BUILT: Final[dict[type[IPolicyFactory], Any]] = {
    IMemoryPoolFactory: IMemoryPool,
    IWaitOrderFactory: IWaitOrder,
    IPurgatoryFactory: IPurgatory,
    IQuotaPolicyFactory: IQuotaPolicy,
    IMetricsExporterFactory: IMetricsExporter,
    IUsageExchangeFactory: IUsageExchange,
}
"""What factories of each kind build; kinds of others are not listed, and what theirs build is not checked."""

_log = Logger()

_named: dict[Any, Sequence[EntryPoint]] = {}
"""
The entry points of our group, by where Python looked for them and when that last changed; for one such state.  Reading
them of all distributions takes several milliseconds, and each policy that is built asks for them.
"""

_loaded: dict[tuple[str, str], Any] = {}
"""
What entry points named when they were first loaded.  A factory C{acme.limit} that is implemented in a module
C{acme.limit} is hidden by it as soon as that is imported, which is when it is used.
"""


class PolicyError(ValueError):
    """
    A description cannot be made into a policy; the message is one sentence.
    """


class ExtraMissing(PolicyError):
    """
    A policy needs an extra of ours that is not installed.
    """


@implementer(IPlugin)
@define(eq=False, slots=False)
class PolicyFactory:
    """
    A factory that consists of strings until it is used: one statement in a
    drop-in per policy.

    @ivar kind: the interface to provide, such as
        L{admission.interfaces.IMemoryPoolFactory}.
    @ivar name: the word before the first colon of a description.
    @ivar help: what the policy does, in one or more paragraphs.
    @ivar format: the arguments, as usage text.
    @ivar implementation: the full name of a callable that takes the context
        and the arguments of the description; imported at the first use.
    @raise ValueError: for a kind, a name or an implementation that cannot be one.
    """

    kind: type[IPolicyFactory]
    name: str
    help: str
    format: str
    implementation: str

    def __attrs_post_init__(self) -> None:
        _checkKind(self.kind)
        if not (isinstance(self.name, str) and self.name and set(self.name).isdisjoint(":=\\")):
            raise ValueError(f"name={self.name!r}: write a word without colons, equals signs and backslashes")
        if not isinstance(self.implementation, str):
            raise ValueError(
                f"implementation={self.implementation!r}: write its dotted name, such as 'acme.policies.buildLimit'"
            )
        alsoProvides(self, self.kind)

    def resolve(self) -> Callable[..., Any]:
        """
        Import the implementation.

        @raise Exception: whatever importing it raises.
        @raise PolicyError: if it cannot be called.
        @raise ExtraMissing: if it needs an extra that is not installed.
        """
        try:
            with explaining(self.name, ExtraMissing):
                implementation: Callable[..., Any] = namedAny(self.implementation)  # type: ignore[no-untyped-call]
        except ObjectNotFound:
            # It does not say why; this does.
            import_module(self.implementation.partition(".")[0])
            raise
        if not callable(implementation):
            raise PolicyError(f"{self.implementation} is {implementation!r}, and no function")
        return implementation

    def build(self, context: PolicyContext, *args: str, **kwargs: str) -> Any:
        return self.resolve()(context, *args, **kwargs)


@implementer(IPlugin, ITransportAdapters)
@define(eq=False, slots=False)
class TransportAdapters:
    """
    Adapters that consist of a name until they are needed; see L{PolicyFactory}.

    @ivar name: their name in messages.
    @ivar implementation: the full name of a callable that registers them.
    """

    name: str
    implementation: str

    def register(self) -> None:
        namedAny(self.implementation)()  # type: ignore[no-untyped-call]


@frozen
class InstalledFactory:
    """
    A factory and its provider.

    @ivar name: the factory's C{name}; likewise C{format} and C{help}.
    @ivar factory: a provider of the requested L{IPolicyFactory}.
    @ivar providedBy: the drop-in module, or the entry point and its distribution.
    """

    name: str
    format: str
    help: str
    factory: Any
    providedBy: str


def parseDescription(description: str) -> tuple[str, list[str], dict[str, str]]:
    """
    Parse a description as Twisted does with an endpoint: colons
    separate arguments, the first C{=} of an argument makes it a keyword, a
    backslash escapes the next character.

    @return: the name, the positional and the keyword arguments.
    @raise PolicyError: if there is no name, a keyword comes twice, or a
        backslash comes last.
    """
    arguments: list[tuple[str | None, str]] = []
    keyword: str | None = None
    value = ""
    characters = iter(description)
    for character in characters:
        if character == ":":
            arguments.append((keyword, value))
            keyword, value = None, ""
        elif character == "=" and keyword is None:
            keyword, value = value, ""
        elif character == "\\":
            quoted = next(characters, None)
            if quoted is None:
                raise PolicyError(f"{description!r} ends in a backslash; write two of them for one")
            value += quoted
        else:
            value += character
    arguments.append((keyword, value))

    if arguments[0][0] is not None or not arguments[0][1]:
        raise PolicyError(f"{description!r} must begin with the name of a policy, as in NAME or NAME:ARGUMENT")
    positional = [value for keyword, value in arguments if keyword is None]
    keywords: dict[str, str] = {}
    for keyword, value in arguments:
        if keyword in keywords:
            raise PolicyError(f"{description!r} gives {keyword} twice")
        if keyword is not None:
            keywords[keyword] = value
    return positional[0], positional[1:], keywords


def listFactories(interface: type[IPolicyFactory]) -> list[InstalledFactory]:
    """
    Find the installed factories of one kind: drop-ins in C{twisted.plugins}
    first, then entry points.  What cannot be loaded, or is no factory, is
    logged and left out.

    @param interface: one of the interfaces that extend L{IPolicyFactory}.
    @return: sorted by name; factories that share a name are all included.
    @raise ValueError: if C{interface} is none of these; so do the functions below.
    """
    installed, leftOut = _findAll(interface)
    for sentence in leftOut:
        _log.warn("{sentence}", sentence=sentence)
    return installed


def findFactory(interface: type[IPolicyFactory], name: str) -> InstalledFactory:
    """
    Find the factory of that name.

    @raise PolicyError: if there is none, listing all factories and what is left
        out, or if there are several, naming their providers.
    """
    installed, leftOut = _findAll(interface)
    matching = [each for each in installed if each.name == name]
    if not matching:
        names = ", ".join(sorted({each.name for each in installed})) or "nothing"
        raise PolicyError("; ".join([f"no {_noun(interface)} is called {name!r}", f"installed: {names}", *leftOut]))
    if len(matching) > 1:
        providers = list(dict.fromkeys(each.providedBy for each in matching))
        if len(providers) == 1:
            raise PolicyError(f"{name!r} is given twice in {providers[0]}; keep one of them")
        raise PolicyError(f"{name!r} is provided by {' and '.join(providers)}; uninstall all but one")
    return matching[0]


def implementationOf(factory: Any) -> str:
    """
    The name by which a process that looks for no plug-ins can import the
    implementation of C{factory}.

    @return: the full name of a callable as in C{PolicyFactory.implementation},
        or of the factory's class, which makes the same factory when it is
        called without arguments.
    @raise PolicyError: if there is no such name.
    """
    if isinstance(factory, PolicyFactory):
        return factory.implementation
    made = type(factory)
    name = f"{made.__module__}.{made.__qualname__}"
    try:
        isFactory = IPolicyFactory.providedBy(namedAny(name)())  # type: ignore[no-untyped-call]
    except Exception:
        isFactory = False
    if not isFactory:
        raise PolicyError(
            f"{factory.name!r} cannot be built by another process, which has only {name}() to make it with; "
            "provide it as an admission.plugins.PolicyFactory"
        )
    return name


def checkPolicy(interface: type[IPolicyFactory], description: str) -> None:
    """
    Check C{description} without building anything: its grammar, its name, the
    number and names of its arguments.

    @raise PolicyError: for these faults, as L{buildPolicy} would.
    """
    _bind(interface, description, None)


def buildPolicy(interface: type[IPolicyFactory], description: str, context: PolicyContext) -> Any:
    """
    Build the policy that C{description} describes.

    @param interface: the kind of factory, such as
        L{admission.interfaces.IMemoryPoolFactory}.
    @return: the policy.
    @raise PolicyError: if the description is wrong in any way, or its
        implementation fails or returns something else.
    """
    function, build = _bind(interface, description, context)
    try:
        policy = build()
    except ValueError as error:
        raise PolicyError(f"{description!r}: {error}") from error
    except FAILURES as error:
        raiseInterrupt()
        raise PolicyError(f"{description!r}: {function} raised {_withKind(error)}") from error
    fault = _faultOf(interface, policy)
    if fault:
        raise PolicyError(f"{description!r}: {function} returned {_inWords(policy)}, which {fault}")
    return policy


def registerTransportAdapters() -> None:
    """
    Have every installed L{ITransportAdapters} register its adapters.  Call it
    once in a process, when adaptation has found nothing.
    """
    for adapters in getPlugins(ITransportAdapters):
        adapters.register()


@frozen
class PolicyKind:
    """
    A kind of policy that users of a command can choose.

    @ivar option: the name of the option, C{"pool"} for C{--pool}.
    @ivar interface: the kind of factory.
    @ivar repeatable: whether the option may be repeated; its value is
        then a list of descriptions, and otherwise one description or L{None}.
    """

    option: str
    interface: type[IPolicyFactory]
    repeatable: bool = False


class PolicyOptionsMixin(Options):
    """
    For each kind in C{policyKinds} three options: C{--pool DESCRIPTION},
    C{--help-pool}, which lists what is installed, and C{--help-pool-type NAME}.

    Descriptions are checked as they are parsed and stored as they were
    written; L{buildPolicy} makes policies of them once there is a context.

    @cvar policyKinds: the kinds on offer.  Set it in the class statement of
        the subclass.
    """

    policyKinds: ClassVar[Sequence[PolicyKind]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for kind in cls.__dict__.get("policyKinds", ()):
            for name, method in _optionMethods(kind).items():
                setattr(cls, name, method)

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        for kind in self.policyKinds:
            self[kind.option] = [] if kind.repeatable else None


def _optionMethods(kind: PolicyKind) -> dict[str, Callable[..., None]]:
    option, noun = kind.option, _noun(kind.interface)

    # usage.Options tells a flag from an option with a value by the number of arguments.
    def choose(self: PolicyOptionsMixin, description: str) -> None:
        try:
            checkPolicy(kind.interface, description)
        except PolicyError as error:
            raise UsageError(f"--{option}: {error}") from error
        if kind.repeatable:
            self[option].append(description)
        elif self[option] not in (None, description):
            raise UsageError(f"--{option} is given twice: {self[option]!r} and {description!r}")
        else:
            self[option] = description

    def listAll(self: PolicyOptionsMixin) -> None:
        installed, leftOut = _findAll(kind.interface)
        rows = [("Name", "Format", "Provided by"), ("====", "======", "===========")]
        rows += [(each.name, each.format, each.providedBy) for each in installed]
        sys.stdout.write(f"Usage: --{option} NAME[:ARGUMENTS]\nFor detailed help: --help-{option}-type NAME\n\n")
        sys.stdout.write(table(rows, indent="  "))
        # What cannot be loaded may be of any kind.
        sys.stdout.writelines(f"\n{printable(sentence)}\n" for sentence in leftOut)
        raise SystemExit(0)

    def explain(self: PolicyOptionsMixin, name: str) -> None:
        try:
            installed = findFactory(kind.interface, name)
        except PolicyError as error:
            raise UsageError(f"--help-{option}-type: {error}") from error
        sys.stdout.write(f"Usage: --{option} {installed.format}\nProvided by: {installed.providedBy}\n\n")
        sys.stdout.writelines(f"  {line}".rstrip() + "\n" for line in inspect.cleandoc(installed.help).split("\n"))
        raise SystemExit(0)

    again = "  May be given several times." if kind.repeatable else ""
    choose.__doc__ = f"The {noun} to use, as NAME[:ARGUMENTS]; see --help-{option}.{again}"
    listAll.__doc__ = f"List every installed {noun} and exit."
    explain.__doc__ = f"Explain one {noun} and exit."
    word = option.replace("-", "_")
    return {f"opt_{word}": choose, f"opt_help_{word}": listAll, f"opt_help_{word}_type": explain}


def _checkKind(interface: Any) -> None:
    if not (isinstance(interface, InterfaceClass) and interface.extends(IPolicyFactory)):
        kinds = ", ".join(each.__name__ for each in _BUILT)
        raise ValueError(f"{interface!r} is no interface of factories; write one of {kinds}")


def _bind(
    interface: type[IPolicyFactory], description: str, context: PolicyContext | None
) -> tuple[str, Callable[[], Any]]:
    """
    Find what builds a policy.

    @return: its full name, and itself with its arguments.
    """
    name, args, kwargs = parseDescription(description)
    installed = findFactory(interface, name)
    factory = installed.factory
    function = f"{type(factory).__module__}.{type(factory).__qualname__}.build"
    try:
        if isinstance(factory, PolicyFactory):
            function, build = factory.implementation, factory.resolve()
        else:
            build = factory.build
        signature = inspect.signature(build)
    except ExtraMissing as error:
        raise PolicyError(f"{description!r}: {error}") from error
    except FAILURES as error:
        raiseInterrupt()
        raise PolicyError(
            f"{description!r}: {installed.providedBy} cannot load its implementation: {_withKind(error)}"
        ) from error
    try:
        bound = signature.bind(context, *args, **kwargs)
    except TypeError as error:
        if _takesNoContext(signature, args, kwargs):
            raise PolicyError(
                f"{description!r}: {function} must take the PolicyContext first, before the arguments of "
                f"{installed.format}"
            ) from error
        reason = str(error).replace("got an unexpected keyword argument", f"{name} has no argument")
        raise PolicyError(f"{description!r}: {reason}; expected {installed.format}") from error
    return function, partial(build, *bound.args, **bound.kwargs)


def _takesNoContext(signature: inspect.Signature, args: Sequence[str], kwargs: dict[str, str]) -> bool:
    """
    Whether a function takes just the arguments of a description: without the context they fit, and neither the name nor
    the type of its first parameter mentions one.
    """
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return "context" not in str(next(iter(signature.parameters.values()), "")).lower()


def _faultOf(interface: type[IPolicyFactory], policy: Any) -> str:
    """
    Why a factory of this kind may not have built C{policy}; empty if it may.
    """
    built = _BUILT.get(interface)
    if built is None:
        return ""
    if not built.providedBy(policy):
        return f"is no {built.__name__}; return an object of a class with @implementer({built.__name__})"
    missing = [name for name in built if not hasattr(policy, name)]
    return f"lacks {', '.join(missing)} of {built.__name__}" if missing else ""


def _withKind(error: BaseException) -> str:
    return str(error) if isinstance(error, PolicyError) else f"{type(error).__name__}: {safe_str(error)}"


def _inWords(thing: Any) -> str:
    if thing is None:
        return "None"
    if isinstance(thing, ModuleType | type):
        return f"the {'class' if isinstance(thing, type) else 'module'} {thing.__name__}"
    kind = type(thing).__name__
    return f"an {kind}" if kind[0] in "AEIOUaeiou" else f"a {kind}"


def _findAll(interface: type[IPolicyFactory]) -> tuple[list[InstalledFactory], list[str]]:
    """
    Find the installed factories, sorted by name, and say what is left out and why.
    """
    _checkKind(interface)
    found: dict[int, InstalledFactory] = {}
    leftOut: list[str] = []
    for providedBy, load in (*_dropins(interface), *_entryPoints()):
        try:
            factory: Any = load()
            if interface.providedBy(factory) and id(factory) not in found:
                texts = factory.name, factory.format, factory.help
                if not all(isinstance(each, str) for each in texts):
                    raise PolicyError("its name, format and help are not all texts")
                found[id(factory)] = InstalledFactory(*texts, factory, providedBy)
        except FAILURES as error:
            raiseInterrupt()
            leftOut.append(f"{providedBy} cannot be used and is left out: {_withKind(error)}")
    return sorted(found.values(), key=lambda installed: installed.name), leftOut


def _dropins(interface: type[IPolicyFactory]) -> Iterator[tuple[str, Callable[[], Any]]]:
    # As twisted.plugin.getPlugins does it, which does not tell the module of a plug-in and logs tracebacks.
    dropins = getCache(plugins)  # type: ignore[no-untyped-call]
    for dropin in dropins.values():
        for plugin in dropin.plugins:
            if any(provided.isOrExtends(interface) for provided in plugin.provided):
                yield dropin.moduleName, plugin.load
    for module in getModule(plugins.__name__).iterModules():  # type: ignore[no-untyped-call]
        if module.name.rpartition(".")[2] not in dropins:
            # Once more, since Twisted does not tell why it has not gone in.
            yield module.name, module.load


def _entryPoints() -> Iterator[tuple[str, Callable[[], Any]]]:
    state = tuple((path, _changedNanoseconds(path)) for path in sys.path)
    if state not in _named:
        _named.clear()
        _named[state] = tuple(entry_points(group=ENTRY_POINT_GROUP))
    for entry in _named[state]:
        distribution = f" of {entry.dist.name}" if entry.dist is not None else ""
        yield f"entry point {entry.name} ({entry.value}){distribution}", partial(_load, entry)


def _changedNanoseconds(path: str) -> int | None:
    try:
        return os.stat(path or os.curdir).st_mtime_ns
    except OSError:
        return None


def _load(entry: EntryPoint) -> Any:
    """
    The factory that an entry point names.

    @raise PolicyError: if it names something else.
    """
    key = (entry.name, entry.value)
    if key not in _loaded:
        named: Any = entry.load()
        if not IPolicyFactory.providedBy(named):
            raise PolicyError(f"it names {_inWords(named)}, which is no factory; name an admission.PolicyFactory")
        _loaded[key] = named
    return _loaded[key]


def _noun(interface: type[IPolicyFactory]) -> str:
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in interface.__name__[1:])
    return words.strip().removesuffix(" factory")
