"""Prepare text and tasks of language understanding for fairseq: masked LM, GLUE, RACE and SQuAD."""
