"""Colors, light and dark, that people who see fewer of them can tell apart too; a test compares them as those people see them.

Source: M. Okabe and K. Ito, Color Universal Design, 2008; in place of yellow, which is hard to see on white,
and of black there are purple and gray.
"""

COLORS = {  # name: (on a light page, on a dark one); the light ones differ, so that they can be found in a chart's text
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
    "optimizer": "green",
    "report": "gray",
}
OF_RUN = ("blue", "vermillion", "green", "orange", "pink", "sky", "purple", "gray")


def of_span(name: str) -> str:
    """The light color of a span; pink for one that is not known."""
    return COLORS[OF_SPAN.get(name, "pink")][0]


def of_run(number: int) -> str:
    """The light color of run ``number``; they repeat."""
    return COLORS[OF_RUN[number % len(OF_RUN)]][0]
