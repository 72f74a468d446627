# -*- test-case-name: tests.unit.commands.test_completioncommand -*-
"""
The command C{admission completion}, and what its scripts ask whenever somebody types a tab: C{admission}, the words of
the command line, C{--_shell-completion}, and the name of the shell with where in the line that is.

zsh is answered by what L{twisted.python._shellcomp} makes of L{Options} and their C{compData}.  That serves no other
shell, knows one level of subcommands, offers files as the value of every option, and offers no options after arguments;
this module adds what is missing.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from getopt import GetoptError, gnu_getopt
from io import BytesIO
from typing import Any, TextIO

from twisted.python._shellcomp import ZshArgumentsGenerator, ZshBuilder
from twisted.python.usage import CompleteDirs, CompleteFiles, CompleteList, Options, UsageError

from ..completions import completing, oneOf
from .console import ArgumentOptions, CommandOptions

_BASH = """\
_admission() {
    local what
    COMPREPLY=()
    {
        read -r what
        mapfile -t COMPREPLY
    } < <("$1" --_shell-completion "bash:${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    case $what in
        files) compopt -o default ;;
        directories) compopt -o dirnames ;;
    esac
}
complete -F _admission admission
"""

_ZSH = """\
#compdef admission
_admission() {
    local code
    code=$("$words[@]" --_shell-completion zsh:$CURRENT 2>/dev/null)
    [[ $code == "#compdef "* ]] && eval $code
}
if [[ $funcstack[1] == _admission ]]; then
    _admission "$@"
else
    compdef _admission admission
fi
"""

_SCRIPTS: Mapping[str, str] = {"bash": _BASH, "zsh": _ZSH}


class CompletionOptions(CommandOptions):
    """
    After parsing, C{script} is a key.
    """

    synopsis = " | ".join(_SCRIPTS)
    longdesc = (
        "Writes the script by which a shell completes the command lines of admission when you type a tab: commands, "
        "options, files and directories.  It asks this command, so it is right after an upgrade as well."
    )
    examples = ("completion bash", "completion zsh")
    note = """\
bash, with the package bash-completion:
    admission completion bash > ~/.local/share/bash-completion/completions/admission
or, without it, in ~/.bashrc:
    source <(admission completion bash)
zsh, in ~/.zshrc after compinit:
    source <(admission completion zsh)
or for all users, as _admission in a directory of $fpath:
    admission completion zsh > /usr/local/share/zsh/site-functions/_admission"""
    compData = completing(oneOf(_SCRIPTS))

    def parseArgs(self, *shells: str) -> None:
        """
        @raise UsageError: unless there is one shell that is known.
        """
        if len(shells) != 1 or shells[0] not in _SCRIPTS:
            raise UsageError(f"name your shell, which is one of {', '.join(_SCRIPTS)}")
        self["script"] = _SCRIPTS[shells[0]]


def run(options: CompletionOptions, stdin: TextIO, stdout: TextIO) -> None:
    """
    Run the command; see L{admission.cli.Command}.
    """
    stdout.write(options["script"])


def completed(options: Options, words: Sequence[str], question: str) -> str:
    """
    Answer a shell.

    @param options: of the whole command.
    @param words: the command line, for zsh; without C{admission}.
    @param question: C{zsh:} and which word to complete, C{admission} being the first; or C{bash:} and the command line
        as far as it is completed.
    @return: code for zsh, as Twisted's script for it expects it; for bash a line that says C{words}, C{files} or
        C{directories}, and the words that there can be.
    @raise UsageError: if the question makes no sense.
    @raise CommandFailed: if the extra of a command is missing.
    """
    shell, _, where = question.partition(":")
    if shell == "zsh" and where.isdecimal() and 0 <= int(where) - 2 < len(words):
        position = int(where) - 2
        return _zshCode(*_reached(options, words[:position]), position, words[position])
    if shell == "bash":
        try:
            typed = shlex.split(where)
        except ValueError:
            # A quotation mark is still open.
            typed = where.split()
        current = typed.pop() if typed and not where[-1].isspace() else ""
        return _bashAnswer(*_reached(options, typed[1:]), current)
    raise UsageError("--_shell-completion is for the scripts of admission completion: zsh:POSITION or bash:LINE")


class _Arguments(ZshArgumentsGenerator):
    """
    What can be completed of the options and the arguments of one command.
    """

    def writeHeader(self) -> None:
        if isinstance(self.options, ArgumentOptions):
            self.file.write(b"#compdef admission\n\n_arguments -s \\\n")
        else:
            super().writeHeader()  # type: ignore[no-untyped-call]

    def getAction(self, longname: str) -> str:
        isNamed = longname in self.optActions or longname in self.flagNameToDefinition
        if not isNamed:
            return f":{longname}: "
        action: str = super().getAction(longname)  # type: ignore[no-untyped-call]
        return action


def _reached(options: Options, words: Sequence[str]) -> tuple[Options, Sequence[str]]:
    """
    Follow subcommands as far as there are words, each of which has flags at most.

    @return: the options of the last, and the words after it.
    """
    for number, word in enumerate(words):
        makers = {each[0]: each[2] for each in getattr(options, "subCommands", ())}
        if not makers or (word not in makers and not word.startswith("-")):
            return options, words[number:]
        if word in makers:
            options = makers[word]()
    return options, ()


def _zshCode(options: Options, words: Sequence[str], position: int, current: str) -> str:
    code = BytesIO()
    if not hasattr(options, "subCommands"):
        _Arguments(options, "admission", code).write()  # type: ignore[no-untyped-call]
    elif not words:
        ZshBuilder(options, "admission", code).write(genSubs=not current.startswith("-"))  # type: ignore[no-untyped-call]
    passed = position - len(words)
    # Its _arguments counts from the word that has the options.
    return f"#compdef admission\nshift {passed} words; (( CURRENT -= {passed} ))\n{code.getvalue().decode()}"


def _bashAnswer(options: Options, words: Sequence[str], current: str) -> str:
    known: Any = _Arguments(options, "admission", BytesIO())  # type: ignore[no-untyped-call]
    subCommands = getattr(options, "subCommands", ())
    isOption = current.startswith("-")
    name, equals, value = current.partition("=")
    if isOption and equals:
        words, current = [*words, name], value
    completer: Any = None
    offered: Sequence[str] = ()
    try:
        _, arguments = gnu_getopt(list(words), options.shortOpt, options.longOpt)
    except GetoptError as error:
        # The last option still needs its value, unless there is none of that name.
        completer = known.optActions.get(options.synonyms.get(error.opt))
    else:
        if isOption:
            offered = () if equals else [f"--{each}" for each in sorted(known.allOptionsNameToDefinition)]
        elif subCommands:
            offered = () if arguments else [each[0] for each in subCommands]
        elif len(arguments) < len(known.extraActions):
            completer = known.extraActions[len(arguments)]
    if isinstance(completer, CompleteFiles):
        return "files\n"
    if isinstance(completer, CompleteDirs):
        return "directories\n"
    if isinstance(completer, CompleteList):
        offered = completer._items
    return "words\n" + "".join(f"{each}\n" for each in offered if each.startswith(current))
