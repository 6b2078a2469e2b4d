"""What every training shares: settings, the folder of a run and its model card."""
