"""Tables of computed results, with bounded size."""


class Bounded(dict):
    """A dict that drops all entries before it would exceed `most`.

    Its entries can be computed again, and a program that needs so many different ones in a row
    needs few of them twice.
    """

    def __init__(self, most: int):
        super().__init__()
        self.most = most

    def __setitem__(self, key, value):
        if len(self) >= self.most and key not in self:
            self.clear()
        super().__setitem__(key, value)
