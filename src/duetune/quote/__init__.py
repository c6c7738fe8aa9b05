"""From a job as it was asked for to a configuration, its terms, and a forecast of what it costs."""
