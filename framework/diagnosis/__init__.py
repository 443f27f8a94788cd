"""From facts about a run or a script to the causes of slowness, and advice against them."""
