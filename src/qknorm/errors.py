"""What goes wrong through no fault of the program."""


class UserError(Exception):
    """A mistake the user can mend. The message is a whole sentence: what is wrong, where, what to do.

    Commands print it without a traceback and end with exit code 2.
    """


class LostWorkerError(UserError):
    """Another process of this command has ended or cannot be reached."""
