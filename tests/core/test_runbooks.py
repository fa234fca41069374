"""Every end that needs a person has a page that helps, and the mail names it."""

import re
from pathlib import Path

import pytest

from planaria.core.runbooks import INDEX, PAGES, page_of, path_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/runbooks"
REASONS = {
    "demo-1 is isolated by someone else (maintenance); it is left alone": "isolation-refused",
    "isolation of demo-1 is not confirmed: UNKNOWN: no node demo-1": "isolation-unconfirmed",
    "demo-1 still runs job gpt and is not given up yet: UNKNOWN": "isolation-unconfirmed",
    "no offering of node group workers has capacity now": "no-capacity",
    "VcpuLimitExceeded: You have requested more vCPU capacity": "launch-refused",
    "InvalidAMIID.NotFound: The image id does not exist": "launch-refused",
    "4 replacements were lost before they were ready, last i-1: GPU 3 is missing": "replacements-lost",
    "the node did not come up: i-1 is running and has not reported yet": "node-not-up",
    "the node did not pass its check: GPU 3 is missing": "check-failed",
    "the GPU was not reset: 2 processes use it": "repair-refused",
    "the node was not rebooted: i-1 is not isolated by this incident; it is not rebooted": "repair-refused",
    "the node was not admitted: demo-1 is not readmitted yet: UNKNOWN": "not-admitted",
    "i-1 is not isolated by this incident; it is not terminated": "not-retired",
    "nobody approved within 1 h": "not-approved",
    "rejected by ada: no; the node stays isolated after its GPU reset": "not-approved",
    "its execution died 5 times, last heal-i-1-5": "execution-died",
    "state Reboot failed: throttled": "execution-died",
    "no complete checkpoint; step 30 is corrupt (bad digest): a person must decide": "no-checkpoint",
    "job gpt was resumed 10 times within 3600 s": "job-fails",
    "the scheduler refused attempt 3 of job gpt: demo-1 is isolated": "requeue-refused",
    "the scheduler does not start attempt 3 of job gpt yet: demo-1 is down": "requeue-refused",
    "job gpt fails by itself: attempts 2, 3, 4 ended with exit code 1 before their first step": "job-fails",
    "attempt 2 of job 1200 was started and is FAILED after 2 s (exit code 3)": "job-fails",
    "the scheduler does not tell yet that attempt 2 of job 1200 runs": "requeue-refused",
    "attempt 2 of job 1200 runs for 3 s": "requeue-refused",
    "demo-1 is gone and the scheduler does not give it up yet: UNKNOWN": "isolation-unconfirmed",
    "the job fails from every checkpoint that is kept (step 30 is set aside ...": "no-checkpoint",
    "restore 3 of job gpt cannot be done: there is no checkpoint in /fsx/gpt nor in S3": "checkpoint-restore",
    "restore 3 of job gpt: step 40 has no room: it needs 3 GB": "checkpoint-restore",
    "restore 3 of job gpt: its execution died 5 times": "checkpoint-restore",
    "i-1 cannot list the checkpoints of job gpt: no such file": "no-checkpoint",
    "job gpt cannot be resumed: demo-1 (i-1) is gone and nobody replaces it": "job-waits",
    "the job was requeued and made no step: attempt 3 of job gpt has not finished a step yet": "no-step",
}


@pytest.mark.parametrize(("reason", "page"), REASONS.items(), ids=list(REASONS.values()))
def test_a_reason_leads_to_its_page(reason: str, page: str) -> None:
    assert page_of(reason) == page
    assert path_of(reason) == f"docs/runbooks/{page}.md"


def test_what_nobody_foresaw_leads_to_the_index() -> None:
    assert page_of("the moon is full") == INDEX


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_there_and_says_what_to_do(page: str) -> None:
    text = (FOLDER / f"{page}.md").read_text()
    if page == INDEX:
        linked = set(re.findall(r"\]\(([a-z-]+)\.md\)", text))
        assert linked == set(PAGES) - {INDEX}
    else:
        parts = ["What Planaria has done", "Where to look", "What to do"]
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == parts
