"""Light and dark colors that people with color blindness can tell apart.

A test compares the colors as people with each kind of color blindness see them.

Source: M. Okabe and K. Ito, Color Universal Design, 2008. Purple and gray replace their yellow,
which is hard to see on white, and their black.
"""

# name: (on a light page, on a dark page). ``svg`` finds the light colors in the text of a chart,
# so no two of them are equal.
COLORS = {
    "paper": ("#ffffff", "#14171b"),
    "ink": ("#1b1f24", "#e8eaed"),
    "muted": ("#59626d", "#a6aeb8"),
    "grid": ("#dde2e7", "#31373f"),
    "blue": ("#0072b2", "#3f9fe0"),
    "vermillion": ("#d55e00", "#f4732a"),
    "green": ("#009e73", "#22b88d"),
    "pink": ("#cc79a7", "#e29ac2"),
    "orange": ("#e69f00", "#f2b233"),
    "sky": ("#56b4e9", "#9bd8fb"),
    "purple": ("#4b0f5c", "#8f5fd0"),
    "gray": ("#6e7681", "#8b949e"),
}
PAPER, INK, MUTED, GRID = (COLORS[name][0] for name in ("paper", "ink", "muted", "grid"))
OF_SPAN = {
    "idle": "vermillion",
    "wait": "vermillion",
    "copy": "orange",
    "forward": "blue",
    "backward": "sky",
    "exchange": "purple",
    "optimizer": "green",
    "report": "gray",
}
OF_RUN = ("blue", "vermillion", "green", "orange", "pink", "sky", "purple", "gray")


def of_span(name: str) -> str:
    """Return the light color of a span; an unknown span is pink."""
    return COLORS[OF_SPAN.get(name, "pink")][0]


def of_run(number: int) -> str:
    """Return the light color of run ``number``. After eight runs the colors repeat."""
    return COLORS[OF_RUN[number % len(OF_RUN)]][0]
