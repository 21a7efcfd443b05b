"""Stand-ins for gcloud, git, kubectl, sbatch and the like: they record, and answer from a script.

Run as a program under another name, this file appends its arguments and its standard input to calls.jsonl
beside it, and then does what the first rule in rules.json says whose word is in one of the arguments. Of
the answers of a rule, one after the other is used; the last stays. An answer is an exit status with what is
written to standard output and to standard error, or one of the words that `_answer` knows.
"""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


class StandIns:
    """A folder of stand-ins for programs, to be put first on PATH.

    Attributes:
        home: the one machine at the other end of every connection.
    """

    def __init__(self, folder: Path, *programs: str):
        self.folder, self.home = folder / "bin", folder / "home"
        self.folder.mkdir()
        self.home.mkdir()
        source = Path(__file__).read_text()
        for program in programs:
            path = self.folder / program
            path.write_text(f"#!{sys.executable} -SE\n{source}")
            path.chmod(0o755)
        self.rules([])

    def rules(self, rules: list[tuple[str, list]]) -> None:
        (self.folder / "rules.json").write_text(json.dumps([[word, answers] for word, answers in rules]))

    def environment(self, **more: str) -> dict[str, str]:
        path = f"{self.folder}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY), **more}

    def calls(self, *programs: str) -> list[list[str]]:
        """Return the commands that were run, program first, in order."""
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        commands = [json.loads(line)["command"] for line in lines]
        return [command for command in commands if not programs or command[0] in programs]

    def standard_input(self) -> list[str]:
        return [
            json.loads(line)["stdin"] for line in (self.folder / "calls.jsonl").read_text().splitlines()
        ]


def words_of(line: str) -> list[str]:
    """Return the arguments that bash reads in a line."""
    script = f"printf '%s\\0' {line}"
    printed = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout
    return printed.decode().split("\0")[:-1]


def _stand_in() -> int:
    folder = Path(sys.argv[0]).parent
    command = [Path(sys.argv[0]).name, *sys.argv[1:]]
    given = sys.stdin.read() if "--filename=-" in command else ""
    with (folder / "calls.jsonl").open("a") as file:
        file.write(json.dumps({"command": command, "stdin": given}) + "\n")
    rules = json.loads((folder / "rules.json").read_text())
    for word, answers in rules:
        if any(word in argument for argument in command):
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            (folder / "rules.json").write_text(json.dumps(rules))
            return _answer(answer, command, folder.parent / "home")
    return 0


def _answer(answer: list | str, command: list[str], home: Path) -> int:
    if answer == "remote":
        script = next(a for a in command if a.startswith("--command=")).removeprefix("--command=")
        environment = {**os.environ, "HOME": str(home)}
        return subprocess.run(["sh", "-c", script], cwd=home, env=environment, check=False).returncode
    if answer == "copy":
        source, destination = command[5], command[6].split(":", 1)[1]
        shutil.copy(source, home / destination)
        return 0
    if answer == "pack":
        output = next(a for a in command if a.startswith("--output=")).removeprefix("--output=")
        with tarfile.open(output, "w:gz") as archive:
            for name in ("hashes.txt", "launch/environment.sh", "launch/tpu_worker.sh"):
                archive.add(name)
            archive.addfile(tarfile.TarInfo("constraints.txt"), io.BytesIO())
        return 0
    if answer == "slow":
        time.sleep(0.5)
        return 143
    status, written, error = answer
    if written:
        print(written)
    if error:
        print(error, file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(_stand_in())
