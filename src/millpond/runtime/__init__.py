"""How an epoch runs without Spark: gather, packets, fold, result rows. Arrow in, Arrow out."""
