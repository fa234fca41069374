"""The tags that tie EC2 instances to Planaria."""

CLUSTER = "planaria:cluster"
GROUP = "planaria:group"
NAME = "planaria:name"
LAUNCH = "planaria:launch"
REPLACES = "planaria:replaces"

OPT_OUT = "planaria:opt-out"
"""On an instance, with any value but "false": a person wants Planaria to leave this node alone."""
