"""The CDK app's stacks and constructs. Imports nothing of ours: it knows file names and ASL text only."""
