"""Parts shared by all trainings: the run, its folder and its model card."""
