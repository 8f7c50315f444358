"""What can go wrong here: this machine does not let the test bed do something, and the message says what."""


class TestbedError(Exception):
    """Ends the command with its message; the message holds the facts (command, exit code, log tail)."""

    __test__ = False  # the name starts with "Test": this is no test class
