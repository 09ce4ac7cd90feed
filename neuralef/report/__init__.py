"""What a run leaves behind: its record, tables and figures."""

from neuralef.report.calibration import BINS, curves, interval_scores, scores
from neuralef.report.figures import OOD, TEST, coverage, entropies, ladder, panel, reliability
from neuralef.report.record import KEYS, environment, read_result, timed, write_figure, write_result
from neuralef.report.tables import lines_of, make_table, number
from neuralef.serialization.files import write_json
from neuralef.serialization.replace import check_writable

__all__ = [
    "BINS", "KEYS", "OOD", "TEST", "check_writable", "coverage", "curves", "entropies",
    "environment", "interval_scores", "ladder", "lines_of", "make_table", "number", "panel",
    "read_result", "reliability", "scores", "timed", "write_figure", "write_json", "write_result",
]  # fmt: skip
