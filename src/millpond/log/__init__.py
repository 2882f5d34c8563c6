"""The truth: numbered, created-if-absent records that never say anything else, and every pure fold of them.

Entry points: `port.Log` (the one verb), `records` (the bytes), `manifest.load` (what is live),
`protocol.Writer` (take over, begin, commit) and `follower.Pump` (whatever reads the log).
It knows nothing about Spark, queries or state: offsets, specs and sections are opaque here.
"""
