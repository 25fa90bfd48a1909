from tests.support.card import card

__all__ = ["card"]
