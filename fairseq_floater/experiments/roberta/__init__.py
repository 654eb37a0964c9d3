"""The paper's section 4.2: FLOATER in a pretrained RoBERTa, and GLUE, RACE and SQuAD with it."""
