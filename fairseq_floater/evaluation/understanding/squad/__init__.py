"""Score answers to SQuAD's questions as its official script does, and the door to all of SQuAD."""
