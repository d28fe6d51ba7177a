"""What a lab does with the trials of its sheet, one file for each lab."""
