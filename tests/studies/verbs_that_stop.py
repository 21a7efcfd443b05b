"""Verbs for tests of studies, which stop halfway."""

from studies.verbs import StudyError
from tests.forked_verbs import ForkedVerbs


class VerbsThatStop:
    """Runs verbs in forks, keeps the commands, and fails instead of running those that are listed."""

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
