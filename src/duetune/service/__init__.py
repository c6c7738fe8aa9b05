"""What people and programs ask of duetune: plan, submit, wish, look, explain."""
