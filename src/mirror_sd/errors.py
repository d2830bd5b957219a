"""Errors a user can act on. Each message is one line: what, why, what to do."""


class MirrorError(Exception):
    """Base of every error that mirror-sd raises on purpose."""


class CheckpointError(MirrorError):
    """A model or draft is missing, damaged, or not what its config says."""


class PairingError(MirrorError):
    """The draft does not fit the target."""


class UnsupportedError(MirrorError):
    """The model is sound but needs something mirror-sd cannot do."""


class PromptError(MirrorError):
    """The prompt is empty, too long, or the request cannot be honoured."""


class CacheDirError(MirrorError):
    """The cache directory cannot be written or has no room."""


class Notice(UserWarning):
    """Something was decided for the user; the command line shows it as a line."""
