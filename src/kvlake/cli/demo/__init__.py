"""`kvlake demo`: a small model, real texts, a memory too small for them -> what a returning session costs, measured."""
