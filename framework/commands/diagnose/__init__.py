"""Why is training slow? Parts measured alone and together -> facts -> rules -> verdicts, each with its prediction, which can be tried."""
