"""The tags that tie EC2 instances to Planaria."""

CLUSTER = "planaria:cluster"
GROUP = "planaria:group"
NAME = "planaria:name"
LAUNCH = "planaria:launch"
REPLACES = "planaria:replaces"

DETACHED = "planaria:detached"
"""On an instance that left its Auto Scaling group by us: "<epoch seconds> <group>"; "" once it is back."""

GIVEN_BACK = "planaria:given-back"
"""On a replacement that its Auto Scaling group need not have launched: the instance whose place it had."""

OPT_OUT = "planaria:opt-out"
"""On an instance, with any value but "false": a person wants Planaria to leave this node alone."""
