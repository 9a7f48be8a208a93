"""What the history of a run tells the user on the way."""

from qknorm.run import Run
from qknorm.training.journal import Journal


def test_what_is_left_goes_by_the_last_epoch(tmp_path):
    journal = Journal(Run(tmp_path))
    assert journal.left(100) is None
    journal.rows.append({"step": 10, "seconds": 5.0, "elapsed": 60.0})  # the start took 55 s
    assert journal.left(None) is None and journal.left(100) == 45.0
    journal.rows.append({"step": 30, "seconds": 9.0, "elapsed": 70.0})  # validation takes 1 s
    assert journal.left(100) == 35.0 and journal.left(30) == 0.0
