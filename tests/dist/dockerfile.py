"""Executes the steps of deploy/docker/Dockerfile in an unpacked root of Debian, where nothing builds images."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

STEP_S = 1800
# Each step has mounts of its own, which end with it.
ENTER = """
root=$1; shift
for folder in proc sys dev; do mount --rbind "/$folder" "$root/$folder"; done
for folder in $BIND; do mkdir -p "$root$folder"; mount --bind -o ro "$folder" "$root$folder"; done
for folder in $SHARE; do mkdir -p "$root$folder"; mount --bind "$folder" "$root$folder"; done
exec chroot "$root" "$@"
"""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def pip_settings() -> tuple[dict[str, str], list[str]]:
    """Where pip finds packages on this machine, as variables of its environment, and the folders that these name."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    settings = dict(
        re.findall(r"^(?:global|:env:)\.(cert|find-links|index-url|extra-index-url)='(.*)'$", listed, re.MULTILINE)
    )
    variables = {f"PIP_{name.upper().replace('-', '_')}": value.replace("\\n", " ") for name, value in settings.items()}
    named = [place for value in variables.values() for place in value.split()]
    # The pages of an index may name files beside it.
    places = [Path(place.removeprefix("file://")).parent if "://" in place else Path(place) for place in named]
    return variables, sorted({str(place) for place in places if place.is_absolute() and place.is_dir()})


@dataclass
class Image:
    """What the instructions of a stage leave behind."""

    root: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    arguments: dict[str, str] = field(default_factory=dict)
    shell: list[str] = field(default_factory=lambda: ["/bin/sh", "-c"])
    user: str = "0:0"
    folder: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)
    signal: str = ""

    def copied_to(self, root: Path) -> Image:
        subprocess.run(["cp", "-a", "--reflink=auto", self.root, root], check=True)
        copied = {key: type(value)(value) for key, value in vars(self).items() if key not in ("root", "arguments")}
        return Image(root=root, **copied)


@dataclass(frozen=True)
class Stage:
    name: str
    base: str
    steps: list[tuple[str, str]]  #: instruction and what follows it


def read_stages(text: str) -> list[Stage]:
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    stages: list[Stage] = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not line.strip():
            continue
        instruction, _, rest = line.strip().partition(" ")
        if instruction == "FROM":
            found = re.fullmatch(r"(\S+) AS (\S+)", rest.strip())
            assert found is not None, f"a stage has a name: {line}"
            stages.append(Stage(found[2], found[1], []))
        else:
            stages[-1].steps.append((instruction, rest.strip()))
    return stages


def words(text: str) -> list[str]:
    listed: list[str] = json.loads(text)  # the form of JSON; the other one would have a shell between
    return listed


class Builder:
    """`images` are stages that are built already, and bases by their name. `sources` are the context.

    Steps find the folders `shared` where they are on this machine, and may write there.
    """

    def __init__(self, folder: Path, images: dict[str, Image], sources: Path, shared: Sequence[Path] = ()) -> None:
        self.images = images
        self._folder = folder
        self._sources = sources
        self._shared = shared

    def build(self, stage: Stage) -> Image:
        image = self.images[stage.base].copied_to(self._folder / stage.name)
        for instruction, rest in stage.steps:
            if instruction == "RUN":
                self.run(image, rest)
            else:
                getattr(self, f"_{instruction.lower()}")(image, rest)
        self.images[stage.name] = image
        return image

    def run(self, image: Image, rest: str) -> None:
        assert image.user == "0:0", "what is installed is root's"
        (image.root / image.folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
        variables = [f"{key}={value}" for key, value in {**image.arguments, **image.environment}.items()]
        proxies = [
            f"{key}={value}" for key, value in os.environ.items() if key.lower().endswith(("_proxy", "_index_url"))
        ]
        pip, folders = pip_settings() if "pip install" in rest else ({}, [])
        proxies += [f"{key}={value}" for key, value in pip.items()]
        entered = ["env", "-i", *variables, *proxies, *image.shell, f"cd {image.folder} && {rest}"]
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-ec", ENTER, "sh", image.root, *entered],
            capture_output=True,
            text=True,
            env={**os.environ, "BIND": " ".join(folders), "SHARE": " ".join(map(str, self._shared))},
            timeout=STEP_S,
            check=False,
        )
        assert done.returncode == 0, f"RUN {rest}\n{done.stdout}{done.stderr}"

    def _copy(self, image: Image, rest: str) -> None:
        *options, source, target = rest.split()
        if not options:
            assert (source, target) == (".", ".")
            for allowed in self._allowed():
                place = image.root / image.folder.lstrip("/") / allowed
                place.parent.mkdir(parents=True, exist_ok=True)
                whole = self._sources / allowed
                shutil.copytree(whole, place) if whole.is_dir() else shutil.copy2(whole, place)
            return
        (option,) = options
        origin = self.images[option.removeprefix("--from=")]
        place = image.root / target.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(origin.root / source.lstrip("/"), place)

    def _allowed(self) -> list[str]:
        """What the ignore file lets through: it forbids everything and allows by name."""
        lines = (self._sources / "deploy/docker/Dockerfile.dockerignore").read_text().splitlines()
        rules = [line for line in lines if line and not line.startswith("#")]
        assert rules[0] == "*"
        assert all(rule.startswith("!") for rule in rules[1:])
        return [rule[1:] for rule in rules[1:]]

    def _env(self, image: Image, rest: str) -> None:
        image.environment.update(word.split("=", 1) for word in shlex.split(rest))

    def _arg(self, image: Image, rest: str) -> None:
        name, _, value = rest.partition("=")
        image.arguments[name] = shlex.split(value)[0] if value else ""

    def _shell(self, image: Image, rest: str) -> None:
        image.shell = words(rest)

    def _user(self, image: Image, rest: str) -> None:
        image.user = rest

    def _workdir(self, image: Image, rest: str) -> None:
        image.folder = rest

    def _expose(self, image: Image, rest: str) -> None:
        image.ports = rest.split()

    def _entrypoint(self, image: Image, rest: str) -> None:
        image.entrypoint = words(rest)

    def _cmd(self, image: Image, rest: str) -> None:
        image.command = words(rest)

    def _stopsignal(self, image: Image, rest: str) -> None:
        image.signal = rest

    def _healthcheck(self, image: Image, rest: str) -> None:
        image.healthcheck = words(rest[rest.index("CMD ") + 4 :])
