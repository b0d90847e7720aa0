"""`kvlake chat`: a person's lines -> a model's answers, in named conversations that rest on disk and go on later."""
