"""Answer questions by spans of a passage (SQuAD): task, criterion, head and search for RoBERTa models.

Importing the package registers the task and the criterion ``floater_question_answering``.
"""

from fairseq_floater.transformer.question_answering import criterion as criterion
from fairseq_floater.transformer.question_answering import task as task
