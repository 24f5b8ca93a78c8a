"""The report: `gather` what is known of a pocket file, `write_page` it as one HTML page, `write_figures` as files."""

from pocketbayes.report.gather import gather
from pocketbayes.report.story import Story

try:
    from pocketbayes.report.page import write_figures, write_page
except ModuleNotFoundError as error:
    raise ImportError(f"report: needs {error.name}. Run `pip install 'pocketbayes[demo]'`.") from error

__all__ = ["gather", "write_page", "write_figures", "Story"]
