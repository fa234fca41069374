"""The text that the demo's model learns: the project's own, so that it is the same on every machine."""

TEXT = """\
The flatworm and the rack

A planarian is a small flat worm that lives under stones in cold streams. It has two eyes that seem to
squint, a mouth in the middle of its belly, and no great plans. Cut it in two and each half grows what it
lacks: the head grows a tail, the tail grows a head, and after two weeks there are two worms that both know
where the dark side of the stone is. Cut it in ten and there are ten. The worm does not call anybody. It
does not write a ticket, it does not hold a meeting about the cut, and it does not wait for the morning. It
closes the wound first, then it measures what is missing, and then it builds exactly that and stops.

A training cluster is not like this. It has a thousand parts, each of them is very good, and each of them
breaks now and then. One part in a thousand breaks on a quiet day, and then nine hundred and ninety-nine
parts stand still and wait for it, because the sum of all the gradients needs every term. The lights are on,
the fans turn, the meter runs, and no step is made. Somebody's telephone rings at ten past three. Somebody
looks for the glasses, then for the laptop, then for the password, and then for the node.

What does this person do at night? First, look whether the node is really gone or only slow to answer. A
node that cannot be reached is not yet a node that has failed; the cable may be out on our own side. Then,
take it out of the line, so that no new work lands on it. Then ask for another one, and while that one
starts, find the last checkpoint that is whole. Not the last one that was begun: the last one that was
finished. A checkpoint without its final mark is a letter without an end, and nobody should act on it. Then
put the new node in the place of the old one, start the ranks, watch the first step, watch the second, and
go back to bed. The work takes four minutes. Finding the glasses took five.

All of this can be written down, and what can be written down can be done by a machine that does not sleep.
The machine must be careful in the way the person was careful. It must not take ten nodes out of the line
because one switch was restarted. It must not start two new nodes because one letter came twice. It must
write what it does before it does it, so that whoever comes next, after a crash, can read how far the work
had gone and carry on from there. It must know when to stop and wake the person after all.

The steps of the night

One. A sign arrives. It may be a line in the log of the kernel that says a card has fallen off the bus. It
may be a notice that the node will be taken back in two minutes. It may be silence. The sign is written down
with the hour and the name of whoever saw it.
Two. The sign is judged. Some signs mean nothing and are kept. Some mean that the card should be reset, some
that the node should be started again, some that it should be replaced. A sign that nobody knows is kept as
unknown, for unknown is an answer too.
Three. The node is claimed, once. Whoever comes second finds the claim and adds what they know to it.
Four. The node is isolated, and in the same moment the new one is asked for, since neither waits for the
other. If the old node still breathes, the job is asked to save what it has.
Five. The new node starts, is checked, and takes the name of the old one, and with the name its place in the
ring.
Six. The job starts again from the newest checkpoint that is complete, that is proven by its sums, and that
belongs to this job and no other. The loss goes on falling where it had stopped.
Seven. The claim is closed and the story is kept: what was seen, what was done, how many seconds each part
took, and what it cost.

Why the sums must be the same

A run that was broken and healed should end with the very same weights as a run that was never broken, down
to the last bit. That is a hard test and therefore a good one. If one batch is read twice, the test fails. If
a random number is drawn once too often, the test fails. If the gradients are added in another order, the
test fails, since with numbers of finite length the order of a sum is a part of its value. So the data of a
step follow from the seed and the number of the step, the dice are saved together with the weights, and the
terms are added in the same order in every attempt. Then the two runs can be laid one over the other like
two sheets of glass, and nothing shows where the cut was.

The worm could have told us. Where it was cut there is a pale line for some days. Then the line darkens, the
eyes open, and it glides back under the stone, whole, in no hurry, as if nothing had been missing at all.
"""

ALPHABET = "".join(sorted(set(TEXT)))


def encode(text: str) -> list[int]:
    """Indices into ALPHABET. Raises ValueError for a character that TEXT does not have."""
    return [ALPHABET.index(character) for character in text]
