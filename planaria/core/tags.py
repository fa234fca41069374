"""The tags that tie EC2 instances to Planaria."""

CLUSTER = "planaria:cluster"
GROUP = "planaria:group"
NAME = "planaria:name"
LAUNCH = "planaria:launch"
REPLACES = "planaria:replaces"
