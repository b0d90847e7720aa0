"""What kvlake promises, as tests that anybody can run: your tier -> pass or fail. Nothing in the product imports it.

`conformance` holds a tier to the contract (subclass `TierConformance` in your own tests; it needs pytest), `faults`
makes tiers and disks fail, `powerloss` cuts the power, `clock` is time in a test's hand, `blocks` are blocks that prove
themselves.
"""
