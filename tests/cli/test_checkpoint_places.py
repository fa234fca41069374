"""What a PLACE of `planaria checkpoints` means."""

from pathlib import Path

import pytest

from planaria.cli.checkpoint_places import Bucket, Directory, Job, job_by_name, parse, parse_bucket, whose
from planaria.core.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("s3://my-bucket/checkpoints/gpt", Bucket("my-bucket", "checkpoints/gpt")),
        ("s3://my-bucket/checkpoints/gpt/", Bucket("my-bucket", "checkpoints/gpt")),
        ("S3://my-bucket//a//b/", Bucket("my-bucket", "a/b")),
        ("s3://my-bucket", Bucket("my-bucket", "")),
        ("s3://my-bucket/Läufe mit Blank/gpt", Bucket("my-bucket", "Läufe mit Blank/gpt")),
        ("s3://my-bucket/gpt/step-40", Bucket("my-bucket", "gpt", "step-40")),
        ("s3://my-bucket/gpt/step-40/planaria-manifest.json", Bucket("my-bucket", "gpt", "step-40")),
        ("s3://my-bucket/gpt/step-40.tmp", Bucket("my-bucket", "gpt/step-40.tmp")),
        ("gpt-demo", Job("gpt-demo")),
        ("1200_3", Job("1200_3")),
    ],
)
def test_a_place(text: str, place: object) -> None:
    assert parse(text) == place


def test_a_directory_has_a_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt" / "step-40").mkdir(parents=True)
    assert parse("gpt") == Job("gpt")
    assert parse("./gpt") == Directory(Path("gpt"))
    assert parse(f"{tmp_path}/gpt") == Directory(tmp_path / "gpt")
    assert parse("gpt/step-40") == Directory(tmp_path / "gpt", "step-40")
    assert parse("./not there") == Directory(Path("not there"))
    monkeypatch.chdir(tmp_path / "gpt")
    assert parse(".") == Directory(Path())


def test_a_directory_with_a_manifest_is_a_step_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "planaria-manifest.json").write_bytes(b"{}")
    for text in (f"{tmp_path}/best", f"{tmp_path}/best/planaria-manifest.json"):
        assert parse(text) == Directory(tmp_path, "best")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("s3://", "names no bucket"),
        ("s3:///gpt", "names no bucket"),
        ("s3://Bad_Bucket/gpt", "names no bucket"),
        ("s3://my-bucket/../other", "plain names in S3"),
        ("gs://my-bucket/gpt", "s3://BUCKET/PREFIX"),
        ("gpt demo", "a directory is written with a slash"),
        ("", "no job's id"),
        ("-x", "no job's id"),
    ],
)
def test_what_is_no_place(text: str, part: str) -> None:
    with pytest.raises(InvalidInput, match=part):
        parse(text)


def test_where_nothing_but_s3_will_do() -> None:
    with pytest.raises(InvalidInput, match="no place in S3"):
        parse_bucket("/fsx/gpt")


def test_a_folder_tells_its_job(tmp_path: Path) -> None:
    assert job_by_name(Directory(tmp_path / "gpt" / "checkpoints")) == "gpt"
    assert job_by_name(Bucket("my-bucket", "checkpoints/gpt")) == "gpt"
    for prefix in ("", "checkpoints"):
        with pytest.raises(InvalidInput, match="--job"):
            job_by_name(Bucket("my-bucket", prefix))


def test_manifests_tell_it_better(capsys: pytest.CaptureFixture[str]) -> None:
    place = Bucket("my-bucket", "checkpoints/gpt")
    assert whose(place, "", {}, strict=True) == "gpt"
    assert whose(place, "", {"llama": 1}, strict=True) == "llama"
    assert whose(place, "qwen", {"llama": 1}, strict=True) == "qwen"
    assert whose(place, "", {"llama": 1, "qwen": 3}, strict=False) == "qwen"
    assert "--job tells which is meant" in capsys.readouterr().err
    with pytest.raises(InvalidInput, match="several jobs"):
        whose(place, "", {"llama": 1, "qwen": 3}, strict=True)
