"""Fair between people and groups, over time: who has had what of the cards, and who goes first because of it.

While somebody waits for a card, what is held of it is due in equal parts to all who hold or wait there. Who has had
less than their due goes first, and what nobody else wanted costs nothing.

- `tree.py`: how a card is divided: between groups by their shares, inside a group between people.
- `ledger.py`: what each person had and what was due to it, on each card, decayed.
- `sharing.py`: what sides hold of a card beside their share now, and whom that keeps from passing others.
- `heads.py`: whose call nobody may delay, card by card.
- `standing.py`: all of this in words and figures for people.

A *person* is whatever string owns containers. A *side* is what two people are compared as: the two groups, or the two
people, where their ways from the root of the tree part. The rules and their bounds: docs/deciding.md, "Between people".
"""
