"""The recognition of commands in pages."""

from tests.pages.page_commands import (
    PageCommand,
    commands_of_page,
    commands_of_prose,
    commands_of_script,
    simple_commands,
)

PAGE = """
Prose with `python -m birdie_jax.report
--workdir=DIR`, `a value` and `SIGTERM`.

```bash
python -m birdie_jax.train --config=a.py \\
    --workdir='b c'   # a comment
cd x && WORKDIR=y bash launch/quickstart.sh | tee log
kubectl apply --filename=- <<END
not: a command
END
```

```
$ python -m birdie_jax.generate --prompt='x'
an answer
```

```console
$ squeue --me
python is what it prints
```

```python
import os
```

    for step in 40 80; do python -m birdie_jax.train --workdir=runs/$step --steps=$((step + 4)); done
    not a command
"""


def test_commands_of_a_page():
    assert commands_of_page("p.md", PAGE) == [
        PageCommand("p.md", ("python", "-m", "birdie_jax.train", "--config=a.py", "--workdir=b c"), True),
        PageCommand("p.md", ("cd", "x"), True),
        PageCommand("p.md", ("bash", "launch/quickstart.sh"), True),
        PageCommand("p.md", ("tee", "log"), True),
        PageCommand("p.md", ("kubectl", "apply", "--filename=-"), True),
        PageCommand("p.md", ("python", "-m", "birdie_jax.generate", "--prompt=x"), True),
        PageCommand("p.md", ("squeue", "--me"), True),
        PageCommand("p.md", ("python", "-m", "birdie_jax.train", "--workdir=runs/40", "--steps=44"), True),
        PageCommand("p.md", ("python", "-m", "birdie_jax.report", "--workdir=DIR"), False),
    ]


def test_commands_of_a_docstring():
    text = (
        "Trains.\n\n    python3 -m launch.local -- \\\n        env x\n\n    not one\n\nOr `bash a.sh b`.\n"
    )
    assert commands_of_prose("c.py", text) == [
        PageCommand("c.py", ("python3", "-m", "launch.local", "--", "env", "x"), True),
        PageCommand("c.py", ("bash", "a.sh", "b"), False),
    ]


def test_commands_of_a_script():
    script = 'set -e\n.venv/bin/python -m birdie_jax.train \\\n  --workdir="${WORKDIR:-runs/tiny}" "$@"\n'
    assert commands_of_script(script) == [
        (".venv/bin/python", "-m", "birdie_jax.train", "--workdir=runs/tiny")
    ]


def test_quotes_and_separators():
    assert list(simple_commands("a 'b && c'; d=1 e | f \"g|h\"")) == [("a", "b && c"), ("e",), ("f", "g|h")]
