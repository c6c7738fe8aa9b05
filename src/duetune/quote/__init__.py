"""From a job as it was asked for to a training plan, its terms, and a forecast of what it costs."""

from duetune.quote.document import QuoteDocument
from duetune.quote.pace import MeasuredPace
from duetune.quote.plan import TrainingPlan, configure
from duetune.quote.quote import Quote, make_quote
from duetune.quote.site import Site
from duetune.quote.terms import Terms, job_terms

__all__ = [
    "MeasuredPace",
    "Quote",
    "QuoteDocument",
    "Site",
    "Terms",
    "TrainingPlan",
    "configure",
    "job_terms",
    "make_quote",
]
