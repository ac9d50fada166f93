"""`gradsyncd man` and `gradsyncd completion`: nothing of --help is missing, and the programs that read them agree."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import DEADLINE_S, clean_environment, run_command

SETTINGS = Path(__file__).parents[3] / "deploy/config/gradsyncd.toml"
PAGES = ["gradsyncd", "gradsyncd.toml"]

# Calls the function as bash does, and prints what it offers, one word per line.
CALL = """
source "$1"
shift
COMP_WORDS=(gradsyncd "$@") COMP_CWORD=$#
_gradsyncd gradsyncd "${@: -1}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


def subcommands(*path: str) -> list[str]:
    text = run_command(*path, "--help").stdout
    if "Subcommands:" not in text:
        return []
    listed = text.split("Subcommands:\n", 1)[1].split("\n\n", 1)[0]
    return re.findall(r"^  ([a-z-]+) ", listed, re.MULTILINE)


def commands() -> Iterator[tuple[str, ...]]:
    for name in subcommands():
        yield (name,)
        for below in subcommands(name):
            yield (name, below)


def options(*path: str) -> set[str]:
    """Those that --help shows. An option of many letters has its line to itself."""
    lines = re.findall(r"^  (-[-\w,]+)", run_command(*path, "--help").stdout, re.MULTILINE)
    return {name for line in lines for name in line.split(",")}


def keys() -> list[str]:
    return re.findall(r"^([a-z_]+) = ", SETTINGS.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both scripts."""
    folder = tmp_path_factory.mktemp("completion")
    for shell, name in (("bash", "gradsyncd.bash"), ("zsh", "_gradsyncd")):
        (folder / name).write_text(run_command("completion", shell).stdout)
    return folder


def offered(scripts: Path, *words: str) -> set[str]:
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", CALL, "bash", scripts / "gradsyncd.bash", *words],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def plain(page: str) -> str:
    """The page without what roff escapes and marks."""
    text = run_command("man", page).stdout.replace("\\-", "-").replace("\\(dq", '"')
    return re.sub(r"\\f[BIR]", "", text)


def test_the_page_has_every_command_and_option_and_no_private_one() -> None:
    text = plain("gradsyncd")
    lines = text.splitlines()
    for path in commands():
        if not subcommands(*path):
            assert any(line.startswith(f'.SS "gradsyncd {" ".join(path)} [OPTIONS]') for line in lines), path
        for name in options(*path):
            assert re.search(rf"^(.*, )?{name}\b(?!-)", text, re.MULTILINE), (path, name)
    assert len(list(commands())) >= 14
    assert "gradsyncd worker" not in text


def test_the_page_of_the_file_has_every_key_with_its_default() -> None:
    text = plain("gradsyncd.toml")
    for line in SETTINGS.read_text().splitlines():
        if section := re.fullmatch(r"\[(.*)\]", line):
            current = section[1]
            assert f".SS [{current}]\n" in text
        elif setting := re.fullmatch(r"([a-z_]+) = (.*)", line):
            name = f"GRADSYNC_{current}_{setting[1]}".upper()
            begin = text.index(f".TP\n{setting[1]} = ")
            assert f"Default {setting[2]}; flag --" in text[begin : text.index(f"environment {name}.", begin)]
    assert len(keys()) >= 27


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_ascii_and_says_when_it_was_packed_only_where_that_is_given(page: str) -> None:
    text = run_command("man", page).stdout
    assert text.isascii()
    assert text.startswith(f'.TH {page.upper()} {1 if page == "gradsyncd" else 5} "" ')
    dated = run_command("man", page, env=clean_environment(SOURCE_DATE_EPOCH="1700000000")).stdout
    assert dated == text.replace('""', '"2023-11-14"', 1)


@needs("groff")
@pytest.mark.parametrize("page", PAGES)
def test_groff_has_no_warning(page: str, tmp_path: Path) -> None:
    file = tmp_path / page
    file.write_text(run_command("man", page).stdout)
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", file], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "SEE ALSO" in re.sub(".\x08", "", done.stdout)  # bold is struck twice


@needs("mandoc")
@pytest.mark.parametrize("page", PAGES)
def test_mandoc_has_no_warning(page: str, tmp_path: Path) -> None:
    file = tmp_path / page
    file.write_text(run_command("man", page, env=clean_environment(SOURCE_DATE_EPOCH="1700000000")).stdout)
    done = subprocess.run(
        ["mandoc", "-Tlint", "-Wwarning", file], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_bash_offers_every_command_and_option(scripts: Path) -> None:
    assert offered(scripts, "") == set(subcommands())
    for path in commands():
        assert offered(scripts, *path, "-") == options(*path), path
        if below := subcommands(*path):
            assert offered(scripts, *path, "") == set(below)


def test_bash_offers_the_values_that_an_option_takes(scripts: Path, tmp_path: Path) -> None:
    levels = {"trace", "debug", "info", "warn", "error"}
    assert offered(scripts, "serve", "--log-level", "") == levels
    assert offered(scripts, "serve", "--log-level", "=") == levels
    assert offered(scripts, "serve", "--log-level", "=", "d") == {"debug"}
    assert offered(scripts, "completion", "") == {"bash", "zsh"}
    assert offered(scripts, "explain", "rank_") == {"rank_in_use", "rank_lost"}
    assert offered(scripts, "serve", "--limits-sessions", "") == set()
    (tmp_path / "one.toml").touch()
    for words in (["check-config"], ["serve", "--config"], ["plan", "check", "--explain"]):
        assert offered(scripts, *words, f"{tmp_path}/o") == {f"{tmp_path}/one.toml"}
    assert offered(scripts, "serve", f"{tmp_path}/o") == set()


def test_bash_completes_the_command_that_run_starts(scripts: Path, tmp_path: Path) -> None:
    assert offered(scripts, "run", "") == {"--"}
    assert "bash" in offered(scripts, "run", "--log-level", "debug", "--", "bas")
    (tmp_path / "train.py").touch()
    assert offered(scripts, "run", "--", "python", f"{tmp_path}/t") == {f"{tmp_path}/train.py"}


def test_bash_uses_it_for_the_daemon(scripts: Path) -> None:
    command = f"source {scripts / 'gradsyncd.bash'}; complete -p gradsyncd"
    done = subprocess.run(["bash", "--norc", "-c", command], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.stdout == "complete -F _gradsyncd gradsyncd\n"


def test_the_script_of_zsh_has_every_command_and_option(scripts: Path) -> None:
    functions = (scripts / "_gradsyncd").read_text().split("\n}\n")
    for path in commands():
        (function,) = [each for each in functions if f"\n_gradsyncd_{'_'.join(path)}() {{\n" in each]
        assert set(re.findall(r"^    '\(.*?\)(-[-\w]+)", function, re.MULTILINE)) == options(*path) or path == (
            "policy",
            "replay",
        )
    replay = next(each for each in functions if "_gradsyncd_policy_replay()" in each)
    assert "'*--policy=[" in replay
    assert "_gradsyncd_worker" not in "".join(functions)
    assert "'worker:" not in "".join(functions)


@needs("zsh")
def test_zsh_takes_the_script(scripts: Path) -> None:
    done = subprocess.run(["zsh", "-n", scripts / "_gradsyncd"], capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stderr) == (0, "")


class Zsh:
    """An interactive zsh with its completion, on a terminal."""

    def __init__(self, scripts: Path) -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.execvpe("zsh", ["zsh", "-f", "-i"], clean_environment(TERM="dumb", HOME=str(scripts)))
        self.write(f"fpath=({scripts} $fpath); autoload -Uz compinit; compinit -D -u\n")
        self.write('gradsyncd() { print -r -- "<$*>"; }\ngradsyncd ready\n')  # in place of the daemon
        self.read_until("<ready>")

    def write(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def read_until(self, text: str) -> None:
        end, seen = time.monotonic() + DEADLINE_S, ""
        while text not in seen:
            ready, _, _ = select.select([self._terminal], [], [], end - time.monotonic())
            assert ready, f"{text!r} did not come, but {seen!r}"
            seen += os.read(self._terminal, 4096).decode(errors="replace")

    def close(self) -> None:
        os.close(self._terminal)  # hangs up
        os.waitpid(self.pid, 0)


@needs("zsh")
def test_zsh_completes_commands_options_and_values(scripts: Path) -> None:
    zsh = Zsh(scripts)
    try:
        for typed, completed in (
            ("comp", "completion"),
            ("policy rep", "policy replay"),
            ("serve --log-le\tdeb", "serve --log-level=debug"),
            ("config show --orig", "config show --origin"),
            ("completion z", "completion zsh"),
            ("explain rank_l", "explain rank_lost"),
        ):
            zsh.write(f"gradsyncd {typed}\t\n")
            zsh.read_until(f"<{completed}>")
    finally:
        zsh.close()
