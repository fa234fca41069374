"""Which page of docs/runbooks/ helps with the reason for which an incident or a resume ended ESCALATED.

The table is read from the top; the first pattern that is found in the reason counts.
"""

import re

INDEX = "escalated"

_PAGES: tuple[tuple[str, str], ...] = (
    (r"restore \d+ of job|checkpoint was not restored", "checkpoint-restore"),
    (r"planaria-(plan|run|settle)-\w+ was sent", "checkpoint-restore"),
    (r"isolated by someone else", "isolation-refused"),
    (r"nobody approved|rejected by .* stays isolated", "not-approved"),
    (r"is not admitted|was not admitted|is not readmitted|cannot take the name", "not-admitted"),
    (r"isolation of .* is not confirmed|the isolation failed", "isolation-unconfirmed"),
    (r"is still ending|still runs job|is let finish|is not saved yet", "isolation-unconfirmed"),
    (r"does not give it up yet", "isolation-unconfirmed"),
    (r"replacements were lost|no further replacement", "replacements-lost"),
    (r"no offering|has capacity|no capacity", "no-capacity"),
    (r"it is not terminated", "not-retired"),
    (r"the node did not come up", "node-not-up"),
    (r"did not pass its check|not verified", "check-failed"),
    (r"was not reset|was not rebooted|is not rebooted", "repair-refused"),
    (r"its execution died|^state .* failed|the launch failed", "execution-died"),
    (r"^restore \d+ of job", "checkpoint-restore"),
    (r"no complete checkpoint|no checkpoint|set aside|step 0|list\S* .*checkpoints", "no-checkpoint"),
    (r"was resumed \d+ times|fails by itself|was started and is [A-Z_]+ after", "job-fails"),
    (r"the scheduler (refused|does not (start|tell))|attempt \d+ of job \S+ runs for", "requeue-refused"),
    (r"made no step", "no-step"),
    (r"waits for .*node|is kept free|is gone and nobody replaces it", "job-waits"),
    (r"refused by EC2|[A-Z][A-Za-z]+(\.[A-Za-z]+)?: ", "launch-refused"),
)  # fmt: skip

PAGES = (*dict.fromkeys(page for _, page in _PAGES), INDEX)


def page_of(reason: str) -> str:
    """The page's name, without folder and ending; the index where no pattern fits."""
    return next((page for pattern, page in _PAGES if re.search(pattern, reason)), INDEX)


def path_of(reason: str) -> str:
    """As it stands in a mail."""
    return f"docs/runbooks/{page_of(reason)}.md"
