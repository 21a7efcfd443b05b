"""Checks the order of a GPU kernel's accesses to shared memory, from its program.

The Mosaic GPU interpreter runs the 128 threads of a block as one, so it cannot detect that one thread reads
too early what another writes. This module walks through the program, each loop twice, and applies these
rules:

- After threads write, threads read and copies start only after `commit_smem`.
- After threads read, threads write and copies fill only after `commit_smem`.
- After a copy to global memory starts, threads write, and the kernel ends, only after `wait_smem_to_gmem`.
"""

import jax
from jax.extend.core import Var


def hazards(function, *arguments, own=()):
    """Return one line for each access of the kernel in `function` that is too early.

    Args:
        function: the function.
        arguments: its arguments.
        own: the indices of shared memory in which each thread uses only its own elements. The rules do not
            apply to it.
    """
    kernel = _find(jax.make_jaxpr(function)(*arguments).jaxpr, "run_scoped")
    follower = _Follower()
    body = kernel.params["jaxpr"]
    names = {var: place for place, var in enumerate(body.invars) if place not in own}
    follower.follow(body, names)
    assert follower.accesses > 0
    return follower.found + [f"end with shared memory {ref} on its way out" for ref in follower.leaving]


def _jaxprs(equation):
    """Return the programs inside an equation."""
    values = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda value: hasattr(value, "jaxpr"))
    values = [getattr(value, "jaxpr", value) for value in values]
    return [value for value in values if hasattr(value, "eqns")]


def _find(jaxpr, name):
    for equation in jaxpr.eqns:
        if equation.primitive.name == name:
            return equation
        for inner in _jaxprs(equation):
            found = _find(inner, name)
            if found is not None:
                return found
    return None


class _Follower:
    def __init__(self):
        self.written, self.read, self.leaving = set(), set(), set()
        self.found, self.accesses = [], 0

    def follow(self, jaxpr, names):
        """Walk through a program. `names` maps the variables of shared memory to their indices."""
        for equation in jaxpr.eqns:
            refs = [names.get(var) if isinstance(var, Var) else None for var in equation.invars]
            primitive = equation.primitive.name
            inner = _jaxprs(equation)
            if primitive == "scan":
                for _ in range(2):
                    self._enter(inner[0], refs)
            elif primitive == "cond":
                self._branch(inner, refs[1:])
            elif inner:
                self._enter(inner[0], refs)
            else:
                self._access(primitive, refs)

    def _enter(self, jaxpr, refs):
        self.follow(jaxpr, dict(zip(jaxpr.invars, refs, strict=True)))

    def _branch(self, branches, refs):
        before, after = self._kinds(), [set(), set(), set()]
        for branch in branches:
            self.written, self.read, self.leaving = (set(kind) for kind in before)
            self._enter(branch, refs)
            after = [kind | more for kind, more in zip(after, self._kinds(), strict=True)]
        self.written, self.read, self.leaving = after

    def _kinds(self):
        return [self.written, self.read, self.leaving]

    def _access(self, primitive, refs):
        match primitive:
            case "get":
                self._touch(primitive, refs[0], self.written, self.read)
            case "swap":
                self._touch(primitive, refs[0], self.read | self.leaving, self.written)
            case "copy_smem_to_gmem":
                self._touch(primitive, refs[0], self.written, self.leaving)
            case "copy_gmem_to_smem":
                self._touch(primitive, refs[1], self.read | self.written, set())
            case "commit_smem":
                self.written, self.read = set(), set()
            case "wait_smem_to_gmem":
                self.leaving = set()

    def _touch(self, primitive, ref, not_yet, mark):
        if ref is None:
            return
        self.accesses += 1
        if ref in not_yet:
            self.found.append(f"{primitive} of shared memory {ref}")
        mark.add(ref)
