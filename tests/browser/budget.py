"""The budget widget as a reader meets it on a page."""

from tests.browser.form import FormOnPage


class BudgetOnPage(FormOnPage):
    """The first budget widget of ``page``."""

    WIDGET_CLASS = "minikv-budget"
