"""The emulator's process: MiniStack, tied to the life of whoever started it.

Run as a script, `python -I emulator_process.py [FD]`, in a session of its own. FD is the reading end of a
pipe whose writing end the starter holds open. When the starter ends, however it ends, the pipe closes and
this process group (MiniStack and all its Lambda workers) is killed.

A pipe and not PR_SET_PDEATHSIG: that signal comes when the starting *thread* ends, and reaches MiniStack
alone, while its Lambda workers would live on for some seconds.
"""

import os
import signal
import sys
import threading


def end_with_starter(descriptor: int) -> None:
    """Block until the other end of the pipe is closed, then kill the own process group."""
    while os.read(descriptor, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    if len(sys.argv) > 1:
        threading.Thread(target=end_with_starter, args=(int(sys.argv[1]),), daemon=True).start()
        del sys.argv[1:]
    from ministack.app import main as serve

    serve()


if __name__ == "__main__":
    main()
