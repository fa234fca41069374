"""What the sandbox cannot do on this machine."""

from planaria.core.errors import PlanariaError


class SandboxError(PlanariaError):
    """This machine cannot run the sandbox as asked. The message is one sentence and names the way out."""
