"""Tables of what was found out, which must not grow without end."""


class Bounded(dict):
    """A dict that forgets all it has before it would have more than `most` entries.

    What is in it can be found out again, and a program that asks for that many different things
    in a row asks for few of them twice.
    """

    def __init__(self, most: int):
        super().__init__()
        self.most = most

    def __setitem__(self, key, value):
        if len(self) >= self.most and key not in self:
            self.clear()
        super().__setitem__(key, value)
