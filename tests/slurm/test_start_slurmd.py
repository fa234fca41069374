"""slurmd starts under the name that Join gave to the instance, and not before."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from planaria.slurm import start_slurmd
from planaria.slurm.programs import Done, Slurm, SlurmError

ID = "i-0abc"
OTHERS = "NodeName=p5-1 Arch=x86_64 State=IDLE Comment=planaria?node=i-0fff&by=root Extra=x\n"


class Desk:
    """Answers of scontrol, one after the other; the last one stays."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.time, self.started = list(answers), 0.0, []  # type: ignore[var-annotated]

    def run(self, arguments: Sequence[str], seconds: float) -> Done:
        assert arguments[0] == "scontrol"
        text = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return Done(1, "", text.removeprefix("!")) if text.startswith("!") else Done(0, text, "")

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def start(self, program: str, words: list[str]) -> None:
        self.started.append(words)

    def main(self, *words: str) -> int:
        slurm = Slurm(run=self.run, now=lambda: self.time, sleep=self.sleep)
        return start_slurmd.main(["--instance-id", ID, *words], slurm, self.start)


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "slurmd"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return str(path)


def test_it_waits_for_its_name_and_takes_it(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    comment = f"rack 7 planaria?node={ID}&reason=planaria:x"
    mine = f"NodeName=p5-2 State=IDLE+DRAIN Comment={comment} Reason=planaria:x\n"
    desk = Desk(OTHERS, OTHERS, OTHERS + mine)
    assert desk.main("--", "-f", "/etc/slurm/slurm.conf") == 0
    assert desk.started == [[program, "-D", "-N", "p5-2", "-f", "/etc/slurm/slurm.conf"]]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2, "the same sentence once"
    assert f"no node of Slurm is {ID} yet" in said[0]
    assert f"{ID} is p5-2" in said[1]


def test_a_controller_that_does_not_answer_is_waited_for_and_in_the_end_given_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    desk = Desk("!Unable to contact slurm controller (connect failure)")
    assert desk.main("--wait", "60") == 1
    assert desk.started == []
    assert 60 <= desk.time < 61
    said = capsys.readouterr().err.splitlines()
    assert "Unable to contact slurm controller" in said[0]
    assert "gave up after 60 s" in said[-1]


@pytest.mark.parametrize(
    "comment",
    [
        f"planaria?node={ID}x",
        f"planaria?nodes={ID}",
        f"node={ID}",
        f"planaria?node={ID} planaria?node={ID}",
        "",
    ],
)
def test_what_is_not_join_s_word_gives_no_name(comment: str) -> None:
    desk = Desk(f"NodeName=p5-2 State=IDLE Comment={comment} Extra=x\n")
    assert desk.main("--wait", "5") == 1
    assert desk.started == []


def test_two_names_are_one_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    desk = Desk("".join(f"NodeName=p5-{n} State=IDLE Comment=planaria?node={ID}\n" for n in (2, 3)))
    assert desk.main("--wait", "5") == 1
    assert "noted on several nodes of Slurm: p5-2, p5-3" in capsys.readouterr().err


def test_an_older_scontrol_is_asked_without_future() -> None:
    asked = []

    def run(arguments: Sequence[str], seconds: float) -> Done:
        asked.append(tuple(arguments))
        if "--future" in arguments:
            return Done(1, "", "scontrol: unrecognized option '--future'")
        return Done(0, f"NodeName=p5-2 Comment=planaria?node={ID}\n", "")

    assert start_slurmd.names_of(Slurm(run=run), ID) == ["p5-2"]
    assert len(asked) == 2

    def hangs(arguments: Sequence[str], seconds: float) -> Done:
        raise SlurmError("scontrol did not answer within 12 s")

    with pytest.raises(SlurmError, match="did not answer"):
        start_slurmd.names_of(Slurm(run=hangs), ID)
