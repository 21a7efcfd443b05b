"""Verbs that fail at chosen commands, for tests of interrupted studies."""

from studies.verbs import StudyError
from tests.forked_verbs import ForkedVerbs


class VerbsThatStop:
    """Runs verbs in forks and records the commands; fails once at each listed command."""

    def __init__(self, verbs: ForkedVerbs, stopped_at: set[int]):
        self._verbs, self._stopped_at = verbs, stopped_at
        self.commands = []

    def __call__(self, command, log):
        if len(self.commands) in self._stopped_at:
            self._stopped_at.remove(len(self.commands))
            raise StudyError("stopped")
        status, _, errors = self._verbs.run(command.verb, *command.arguments)
        assert status == 0, errors[-3000:]
        self.commands.append(command)
