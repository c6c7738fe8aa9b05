"""What a user asks of duetune: job spec, plan, quote, submission, status, explanations."""
