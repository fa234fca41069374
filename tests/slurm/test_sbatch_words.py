"""Where sbatch's options end and the script begins."""

import pytest

from planaria.core.errors import InvalidInput
from planaria.slurm import sbatch_words
from planaria.slurm.sbatch_words import split, values, without


@pytest.mark.parametrize(
    ("line", "options", "script", "arguments"),
    [
        ("train.sh", "", "train.sh", ""),
        ("train.sh -N 4 --x", "", "train.sh", "-N 4 --x"),
        ("-N 4 train.sh", "-N 4", "train.sh", ""),
        ("-N4 train.sh a", "-N4", "train.sh", "a"),
        ("--nodes=4 train.sh", "--nodes=4", "train.sh", ""),
        ("--nodes 4 train.sh", "--nodes 4", "train.sh", ""),
        ("-vQ -H train.sh 1", "-vQ -H", "train.sh", "1"),
        ("-Hn 8 train.sh", "-Hn 8", "train.sh", ""),
        ("-Hn8 train.sh", "-Hn8", "train.sh", ""),
        ("--exclusive train.sh", "--exclusive", "train.sh", ""),
        ("--exclusive=user --nice train.sh", "--exclusive=user --nice", "train.sh", ""),
        ("--no-requeue --contiguous -k train.sh", "--no-requeue --contiguous -k", "train.sh", ""),
        ("--invented=1 train.sh", "--invented=1", "train.sh", ""),
        ("-N 2 -- --odd.sh -x", "-N 2", "--odd.sh", "-x"),
        ("--wrap=date", "--wrap=date", None, ""),
        ("-W -p gpu -J a -t 5 --mem=0 x.sh", "-W -p gpu -J a -t 5 --mem=0", "x.sh", ""),
    ],
)
def test_options_end_at_the_script(line: str, options: str, script: str | None, arguments: str) -> None:
    found = split(line.split())
    assert found.options == tuple(options.split()) and found.script == script
    assert found.arguments == tuple(arguments.split())


@pytest.mark.parametrize("line", ["-N", "--nodes", "-vN"])
def test_an_option_without_its_value_is_named(line: str) -> None:
    with pytest.raises(InvalidInput, match=f"{line} needs a value"):
        split(line.split())


def test_the_last_value_counts_under_its_long_name() -> None:
    line = "-N4 --nodes=8 -a 0-3 --hold -vd afterok:7 -J a"
    assert values(line.split()) == {
        "nodes": "8", "array": "0-3", "hold": "", "v": "", "dependency": "afterok:7", "job-name": "a",
    }  # fmt: skip


def test_options_are_left_out_with_their_values() -> None:
    line = "-d afterok:7 -N 4 --begin now+1hour -H --dependency=singleton --mem=0 -Wv"
    kept = without(line.split(), frozenset({"dependency", "begin", "hold"}))
    assert " ".join(kept) == "-N 4 --mem=0 -Wv"


def test_a_scripts_own_lines_count_up_to_its_first_command() -> None:
    script = (
        "#!/bin/bash\n\n# about\n#SBATCH -N 4 --comment='a b'  # four\n#SBATCH --mem=0\n"
        "#SBATCH --odd='\necho\n#SBATCH -N 9\n"
    )
    words, heterogeneous = sbatch_words.directives(script)
    assert words == ["-N", "4", "--comment=a b", "--mem=0"] and not heterogeneous


@pytest.mark.parametrize("word", ["hetjob", "packjob"])
def test_a_heterogeneous_job_is_known(word: str) -> None:
    assert sbatch_words.directives(f"#!/bin/sh\n#SBATCH -N1\n#SBATCH {word}\n#SBATCH -N2\n")[1]
