"""Every exception of Planaria.

    PlanariaError
      TransientError   try again: throttled, timed out, not ready
      CapacityError    no such node to be had now: next offering    -> NO_CAPACITY
      PermanentError   a retry cannot help                          -> REFUSED
        InvalidInput   what a person or an event gave is wrong      -> INVALID
      Fenced           this session is over: stop quietly           -> FENCED
      Waiting          an answer is still out: ask again later      -> WAIT

Expected ends travel as values; `lambdas/boundary.py` turns these into them. Only TransientError and
defects leave a Lambda as exceptions.
"""


class PlanariaError(Exception):
    """Root of all errors that Planaria raises itself."""


class TransientError(PlanariaError):
    """Throttled, timed out or not ready: the same call may succeed later."""


class CapacityError(PlanariaError):
    """This offering has no capacity now; another one may.

    retry_after: seconds of a state's Wait, unscaled, after which to ask again.
    """

    def __init__(self, reason: str, retry_after: int = 30) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class PermanentError(PlanariaError):
    """A retry cannot help: denied, over quota, refused."""


class InvalidInput(PermanentError):
    """A document, event or file is wrong. The message names what, where and what to do."""


class Fenced(PlanariaError):
    """The session that asked is no longer the node's (or the job's) active one."""


class Waiting(PlanariaError):
    """The answer is still out.

    `carry` holds small JSON values (a ticket, say) that the next try of the same Task needs.
    """

    def __init__(self, reason: str, carry: dict[str, str] | None = None) -> None:
        super().__init__(reason)
        self.carry = carry or {}
